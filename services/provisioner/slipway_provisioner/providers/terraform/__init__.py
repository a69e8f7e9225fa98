"""Provider of workers that Terraform modules make."""
