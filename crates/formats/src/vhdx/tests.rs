//! Tested from outside: `disk/tests/blocks`.
