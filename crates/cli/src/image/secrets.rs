//! `--object secret,id=ID,file=FILE` and `--object secret_keyring,id=ID,serial=N`: QEMU's secrets,
//! which `key-secret=ID` refers to. Only those in files and in the kernel's keyring: what is on the
//! command line itself is shown by a list of processes.

use clap::{Arg, ArgAction, ArgMatches};
use device::Params;

use super::options::words;
use crate::arguments::value;
use crate::failure::Failure;

/// The kinds, each with what says where a secret is, and the parameter of a format for that.
const KINDS: [(&str, &str, &str); 2] =
    [("secret", "file", "key-file"), ("secret_keyring", "serial", "key-serial")];

/// A secret that is named.
struct NamedSecret {
    id: String,
    /// The parameter that says where it is.
    key: &'static str,
    place: String,
    format: String,
}

/// `--object`.
pub(crate) fn object() -> Arg {
    let help = "A secret, for key-secret=ID: secret,id=ID,file=FILE, or of the kernel's keyring: secret_keyring,id=ID,serial=N; format=base64 where it is encoded";
    value("--object TYPE,...", help).action(ArgAction::Append)
}

/// Refuses objects that make no sense, or are none of these.
pub(crate) fn check_objects(matches: &ArgMatches) -> Result<(), Failure> {
    objects(matches).map(drop)
}

/// Names the files and keys of the secrets that parameters refer to.
pub(crate) fn resolve_secrets(matches: &ArgMatches, params: &mut Params) -> Result<(), Failure> {
    // The options that refer to one, each with the prefix of those that name it.
    let refer = ["key-", "new-", "old-"].map(|kind| (kind, kind.trim_start_matches("key-")));
    let prefixes = ["", "encrypt."].into_iter();
    for (kind, prefix) in
        prefixes.flat_map(|p| refer.map(|(k, own)| (format!("{p}{k}"), format!("{p}{own}"))))
    {
        let Some(id) = params.take(&format!("{kind}secret")) else { continue };
        let found = objects(matches)?.into_iter().find(|object| object.id == id);
        let found = found.ok_or_else(|| {
            Failure::usage(format!(
                "{kind}secret={id}: which file? add --object secret,id={id},file=FILE"
            ))
        })?;
        params.set(&format!("{prefix}{}", found.key), &found.place)?;
        params.set(&format!("{prefix}key-format"), &found.format)?;
    }
    Ok(())
}

fn objects(matches: &ArgMatches) -> Result<Vec<NamedSecret>, Failure> {
    super::words(matches, "object").map(object_of).collect()
}

/// What is wrong is said without the values: they may be secret.
fn object_of(text: &str) -> Result<NamedSecret, Failure> {
    let all = words(text);
    let (kind, options) = all.split_first().map_or(("", &[][..]), |(kind, rest)| (&**kind, rest));
    let wrong = |why: &str| Failure::usage(format!("--object {kind}: {why}"));
    let word = kind.trim_start_matches("qom-type=");
    let Some((_, place, key)) = KINDS.into_iter().find(|(known, ..)| *known == word) else {
        let known = "secret,id=ID,file=FILE and secret_keyring,id=ID,serial=N are known";
        return Err(Failure::usage(format!("--object: {known}")));
    };
    let mut params = Params::default();
    for option in options {
        let (key, value) = option.split_once('=').ok_or_else(|| wrong("an option has no value"))?;
        params.set(key, value).map_err(|_| wrong("an option is given twice"))?;
    }
    if params.get("data").is_some() {
        return Err(wrong(
            "data= would be shown by a list of processes; put it into a file: file=FILE",
        ));
    }
    params.check(&["id", place, "format"]).map_err(|e| wrong(&e.to_string()))?;
    let mut need = |key| params.take(key).ok_or_else(|| wrong(&format!("there is no {key}=")));
    let (id, place) = (need("id")?, need(place)?);
    let format = params.take("format").unwrap_or_else(|| "raw".to_owned());
    match &*format {
        "raw" | "base64" => Ok(NamedSecret { id, key, place, format }),
        _ => Err(wrong("format= is raw or base64")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_in_a_file_or_a_keyring_and_nothing_that_is_wrong_shows_one() {
        let found = object_of("secret,id=a,file=/b,,c,format=base64").unwrap();
        let found = (&*found.id, found.key, &*found.place, &*found.format);
        assert_eq!(found, ("a", "key-file", "/b,c", "base64"));
        let found = object_of("secret_keyring,id=a,serial=0x1f").unwrap();
        assert_eq!((found.key, &*found.place, &*found.format), ("key-serial", "0x1f", "raw"));
        assert_eq!(object_of("secret,id=a,file=b").unwrap().format, "raw");
        for wrong in [
            "",
            "tls-creds-x509,id=a,dir=sesame",
            "secret,id=a,data=sesame",
            "secret,id=a,file=b,format=sesame",
            "secret,id=a,serial=sesame",
            "secret_keyring,id=a,file=sesame",
            "secret_keyring,id=a,data=sesame",
            "secret,id=a,file=b,id=sesame",
            "secret,id=a,file=b,sesame",
            "secret,file=sesame",
            "secret,id=sesame",
        ] {
            let error = format!("{:?}", object_of(wrong).err().unwrap());
            assert!(!error.contains("sesame"), "{error}");
        }
    }
}
