# Resources that have these tags: what a run has made that was killed.
terraform {
  required_providers {
    ledger = { source = "registry.terraform.io/slipway/ledger" }
  }
}
variable "tags" { type = map(string) }
data "ledger_machines" "found" { tags = var.tags }
output "identity" { value = data.ledger_machines.found.identity }
output "resources" {
  value = [for found in jsondecode(data.ledger_machines.found.json) : {
    workspace = lookup(found.tags, "slipway-workspace", "")
    address   = lookup(found.tags, "address", "")
    id        = found.id
    tags      = found.tags
  }]
}
