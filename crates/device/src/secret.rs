//! Secrets that are named on a command line and not written there: a list of processes shows only
//! the name.

use crate::{Error, ErrorKind, Fault, Result};

/// The prefix of a variable's name. In parameters for secrets, `-` was only followed by the number
/// of a descriptor, so no old value changes its meaning.
const ENVIRONMENT: &str = "-env:";

/// The value of the variable of the environment that the word names; `None` if it names none.
/// Errors show its name alone.
#[must_use]
pub fn of_environment(word: &str) -> Option<Result<String>> {
    let name = word.strip_prefix(ENVIRONMENT)?;
    let wrong = |why: &str| {
        let action = format!("read a secret from the environment: {why}");
        Error::new(ErrorKind::NotFound, Fault::User, action).on(name)
    };
    Some(match std::env::var(name) {
        Ok(value) => Ok(value),
        Err(std::env::VarError::NotPresent) => Err(wrong("there is no such variable")),
        Err(std::env::VarError::NotUnicode(_)) => Err(wrong("its value is not text")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_named_and_anything_else_is_not() {
        let path = std::env::var("PATH").unwrap();
        assert_eq!(of_environment("-env:PATH").unwrap().unwrap(), path);
        for other in ["PATH", "-3", "-", "env:PATH", "+env:PATH", ""] {
            assert!(of_environment(other).is_none(), "{other}");
        }
        for wrong in ["-env:", "-env:NO_SUCH_VARIABLE", "-env:A=B"] {
            assert!(of_environment(wrong).unwrap().is_err(), "{wrong}");
        }
    }
}
