"""What a machine has: versions, credentials, address, disk. Imports nothing heavy."""
