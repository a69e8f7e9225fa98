# A worker of `make demo PROVIDER=terraform`: one resource, which starts its agent with the user data.
terraform {
  required_providers {
    ledger = { source = "registry.terraform.io/slipway/ledger" }
  }
}
variable "worker" {
  type = object({ id = string, tags = map(string), user_data = string, image = string })
}
resource "ledger_machine" "worker" {
  name      = var.worker.id
  image     = var.worker.image
  tags      = merge(var.worker.tags, { address = "ledger_machine.worker" })
  user_data = var.worker.user_data
}
output "instance_id" { value = ledger_machine.worker.id }
output "address" { value = ledger_machine.worker.address }
