//! `.netrc`: logins by host, as curl and ftp read them.

use super::credentials::Secret;

/// The user and password that `text` has for `host`; `user`, if it is given, has to be the same.
pub(super) fn login(text: &str, host: &str, user: Option<&str>) -> Option<(String, Secret)> {
    let mut words = words(text);
    let mut found = None;
    // Whether the current entry is for the host: not yet, or by default, or by its name.
    let mut about = false;
    let mut entry: (Option<String>, Option<String>) = (None, None);
    let mut fits = |entry: &mut (Option<String>, Option<String>), about: bool| {
        let (login, password) = std::mem::take(entry);
        let login = login.filter(|login| user.is_none_or(|user| user == login));
        if let (true, None, Some(login)) = (about, &found, login) {
            found = Some((login, Secret(password.unwrap_or_default())));
        }
    };
    while let Some(word) = words.next() {
        match word.as_str() {
            "machine" => {
                fits(&mut entry, about);
                about = words.next().is_some_and(|name| name.eq_ignore_ascii_case(host));
            }
            "default" => {
                fits(&mut entry, about);
                about = true;
            }
            "login" => entry.0 = words.next(),
            "password" => entry.1 = words.next(),
            "account" => drop(words.next()),
            _ => {}
        }
    }
    fits(&mut entry, about);
    found
}

/// Words between blanks, or in quotes, without comments and macros.
fn words(text: &str) -> impl Iterator<Item = String> {
    let mut all = Vec::new();
    let mut in_macro = false;
    for line in text.lines() {
        if in_macro {
            // A macro ends with an empty line.
            in_macro = !line.trim().is_empty();
            continue;
        }
        let mut rest = line.trim_start();
        while !rest.is_empty() && !rest.starts_with('#') {
            let (word, after) = if let Some(quoted) = rest.strip_prefix('"') {
                unquoted(quoted)
            } else {
                let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
                let (word, after) = rest.split_at(end);
                (word.to_owned(), after)
            };
            if word == "macdef" {
                in_macro = true;
                break;
            }
            all.push(word);
            rest = after.trim_start();
        }
    }
    all.into_iter()
}

/// The text before the closing quote, and the rest after it.
fn unquoted(text: &str) -> (String, &str) {
    let mut word = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return (word, text.get(at + 1..).unwrap_or_default()),
            '\\' => word.extend(letters.next().map(|(_, letter)| letter)),
            _ => word.push(letter),
        }
    }
    (word, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# a comment\nmachine a.example login one password p1\n\
        macdef init\nmachine b.example login wrong password wrong\n\n\
        machine B.example\n  login two\n  password \"p \\\"2\"\n\
        machine a.example login other password p3\ndefault login anybody password guest\n";

    #[test]
    fn a_login_is_found_by_host_and_user() {
        let find = |host: &str, user: Option<&str>| {
            login(TEXT, host, user).map(|(user, secret)| format!("{user}:{}", secret.0))
        };
        assert_eq!(find("a.example", None).unwrap(), "one:p1");
        assert_eq!(find("a.example", Some("other")).unwrap(), "other:p3");
        assert_eq!(find("b.example", None).unwrap(), "two:p \"2");
        assert_eq!(find("c.example", None).unwrap(), "anybody:guest");
        assert_eq!(find("a.example", Some("nobody")), None);
        assert_eq!(login("machine a", "a", None), None);
        assert_eq!(login("", "a", None), None);
    }

    proptest::proptest! {
        #[test]
        fn no_file_is_a_panic(text in "((machine|login|password|macdef|default|\"|#|\\\\|a|é)[ \n\"]{0,2}){0,30}") {
            let _ = login(&text, "a", None);
        }
    }
}
