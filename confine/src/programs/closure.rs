//! What an ELF file needs to start: its interpreter and its libraries.
