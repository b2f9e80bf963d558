//! Reading and making are tested from outside: `disk/tests/blocks`.

mod writing;
