//! What a server wants to see before it gives anything, and how we know that it is the right one.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use blackbox::run::{Outcome, ours, run};
use blackbox::temp::pattern;

use super::nginx::Nginx;

/// Copies with these parameters; whether it was equal.
fn copy(nginx: &Nginx, words: &[String]) -> Outcome {
    let target = nginx.temp().join("copy");
    let _ = fs::remove_file(&target);
    let escaped: Vec<_> = words.iter().map(|word| word.replace('&', "\\&")).collect();
    let outcome = run(ours(["copy", &format!("http:?{}", escaped.join("&"))]).arg(&target));
    assert!(!outcome.stderr.contains("secret"), "{outcome:?}");
    if outcome.status.success() {
        assert!(fs::read(&target).unwrap() == content());
    }
    outcome
}

fn content() -> Vec<u8> {
    pattern(0, 2_000_000)
}

fn url(url: String) -> String {
    format!("url={url}")
}

#[test]
fn logins_tokens_headers_and_cookies_let_us_in() {
    let server = "location /basic { auth_basic x; auth_basic_user_file %TEMP%/users; alias %ROOT%/disk; }\n\
        location /bearer { if ($http_authorization != 'Bearer secret') { return 401; } alias %ROOT%/disk; }\n\
        location /header { if ($http_x_token != secret) { return 401; } alias %ROOT%/disk; }\n\
        location /cookie { if ($cookie_id != secret) { return 401; } alias %ROOT%/disk; }";
    let Some(nginx) = Nginx::start(server) else { return };
    nginx.file("disk", &content());
    nginx.temp().file("users", b"me:{PLAIN}secret\n");
    let secret = nginx.temp().file("secret", b"secret\n");
    let netrc = nginx.temp().file("netrc", b"machine 127.0.0.1 login me password secret");
    let file = format!("+{}", secret.display());
    for (path, words) in [
        ("/basic", vec!["user=me".to_owned(), format!("password={file}")]),
        ("/basic", vec!["user=me".into(), "password=secret".into()]),
        ("/basic", vec![format!("netrc={}", netrc.display())]),
        ("/bearer", vec![format!("bearer={file}")]),
        ("/bearer", vec!["header=Authorization: Bearer secret".into()]),
        ("/bearer", vec!["header-script=echo Authorization: Bearer secret".into()]),
        ("/header", vec!["header=X-Token: secret".into(), "header=X-Other: x".into()]),
        ("/cookie", vec!["cookie=a=b; id=secret".into()]),
        ("/cookie", vec!["cookie-script=echo id=secret".into(), "cookie-script-renew=1".into()]),
    ] {
        let all = [vec![url(nginx.url(path))], words].concat();
        copy(&nginx, &all).succeeded();
        let outcome =
            copy(&nginx, &[url(nginx.url(path)), "user=x".into(), "password=secret".into()]);
        assert!(outcome.failed().contains("401"), "{outcome:?}");
    }
    let whole = nginx.url("/basic").replace("http://", "http://me:secret@");
    copy(&nginx, &[url(whole)]).succeeded();
}

#[test]
fn a_token_that_expires_is_renewed_by_its_script() {
    let server = "if (!-f %ROOT%/token-$http_x_token) { return 401; } limit_rate 4m;";
    let Some(nginx) = Nginx::start(server) else { return };
    nginx.file("disk", &content());
    nginx.file("token-1", b"");
    // The first one is refused at once.
    let script = "header-script=echo X-Token: $iteration".to_owned();
    copy(&nginx, &[url(nginx.url("/disk")), script]).succeeded();
}

#[test]
fn credentials_are_not_sent_to_another_server() {
    let (Some(inner), Some(outer)) = (
        Nginx::start("if ($http_x_token) { return 400; } if ($http_authorization) { return 400; }"),
        Nginx::start(""),
    ) else {
        return;
    };
    drop(outer);
    inner.file("disk", &content());
    let redirect = format!("return 302 {};", inner.url("/disk"));
    let Some(outer) = Nginx::start(&redirect) else { return };
    let words = ["user=me", "password=secret", "header=X-Token: secret"].map(str::to_owned);
    copy(&inner, &[&[url(outer.url("/"))], &words[..]].concat()).succeeded();
}

#[test]
fn https_believes_the_named_authorities_and_no_others() {
    let tls = "ssl_certificate %TEMP%/cert.pem; ssl_certificate_key %TEMP%/key.pem; ssl_protocols TLSv1.2 TLSv1.3;";
    let Some(nginx) = Nginx::start_with("ssl", tls, "") else { return };
    nginx.file("disk", &content());
    let at = |host: &str| url(format!("https://{host}:{}/disk", nginx.port()));
    let ca = format!("cainfo={}", nginx.temp().join("cert.pem").display());
    let resolve = |host: &str| format!("resolve={host}:{}:127.0.0.1", nginx.port());
    copy(&nginx, &[at("127.0.0.1"), ca.clone()]).succeeded();
    copy(&nginx, &[at("localhost"), ca.clone(), "ssl-version=tlsv1.3".into()]).succeeded();
    copy(&nginx, &[at("other.example"), resolve("other.example"), "sslverify=false".into()])
        .succeeded();
    for (words, why) in [
        (vec![at("127.0.0.1")], "not trusted"),
        (vec![at("other.example"), resolve("other.example"), ca], "not trusted"),
        (vec![at("127.0.0.1"), "cainfo=/nonexistent".into()], "read certificates"),
        (vec![at("127.0.0.1"), "cainfo=".into()], "no certificate is trusted"),
    ] {
        let outcome = copy(&nginx, &words);
        assert!(outcome.failed().contains(why), "{outcome:?}");
    }
    let plain = format!("http://127.0.0.1:{}/disk", nginx.port());
    assert!(copy(&nginx, &[url(plain)]).failed().contains("400"));
}

#[test]
fn https_shows_a_certificate_where_one_is_wanted() {
    let tls = "ssl_certificate %TEMP%/cert.pem; ssl_certificate_key %TEMP%/key.pem; ssl_protocols TLSv1.2 TLSv1.3;\n\
               ssl_client_certificate %TEMP%/cert.pem; ssl_verify_client on;";
    let Some(nginx) = Nginx::start_with("ssl", tls, "") else { return };
    nginx.file("disk", &content());
    let path = |name: &str| nginx.temp().join(name).display().to_string();
    let words = [
        url(format!("https://localhost:{}/disk", nginx.port())),
        format!("cainfo={}", path("cert.pem")),
    ];
    copy(&nginx, &words).failed();
    let ours = [format!("sslcert={}", path("cert.pem")), format!("sslkey={}", path("key.pem"))];
    copy(&nginx, &[&words[..], &ours].concat()).succeeded();
}

#[test]
fn a_proxy_carries_http_and_https() {
    let tls = "ssl_certificate %TEMP%/cert.pem; ssl_certificate_key %TEMP%/key.pem; ssl_protocols TLSv1.2 TLSv1.3;";
    let (Some(plain), Some(tls)) = (Nginx::start(""), Nginx::start_with("ssl", tls, "")) else {
        return;
    };
    plain.file("disk", &content());
    tls.file("disk", &content());
    let (port, asked) = proxy();
    let words = [
        format!("proxy=http://127.0.0.1:{port}"),
        "proxy-user=me".to_owned(),
        "proxy-password=secret".to_owned(),
    ];
    let ca = format!("cainfo={}", tls.temp().join("cert.pem").display());
    copy(&plain, &[&[url(plain.url("/disk"))], &words[..]].concat()).succeeded();
    let encrypted = url(format!("https://127.0.0.1:{}/disk", tls.port()));
    copy(&tls, &[&[encrypted.clone(), ca.clone()], &words[..]].concat()).succeeded();
    let asked = asked.lock().unwrap();
    assert!(asked.iter().any(|line| line.starts_with("GET http://127.0.0.1:")), "{asked:?}");
    assert!(asked.iter().any(|line| line.starts_with("CONNECT 127.0.0.1:")), "{asked:?}");
    assert!(asked.iter().all(|line| line.contains("Basic bWU6c2VjcmV0")), "{asked:?}");
    let no_proxy_there = "proxy=http://127.0.0.1:1".to_owned();
    assert!(copy(&tls, &[encrypted, ca, no_proxy_there]).failed().contains("proxy"));
}

/// A proxy, and the first line and login of what it was asked for.
fn proxy() -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let log = asked.clone();
    // The threads end with the process.
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let log = log.clone();
            std::thread::spawn(move || carry(client, &log));
        }
    });
    (port, asked)
}

/// Carries one request, or what goes through a tunnel.
fn carry(mut client: TcpStream, log: &Mutex<Vec<String>>) {
    let mut reader = BufReader::new(client.try_clone().unwrap());
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).unwrap_or(0) == 0 {
            return;
        }
    }
    let login =
        head.lines().find(|line| line.to_ascii_lowercase().starts_with("proxy-authorization"));
    let first = head.lines().next().unwrap();
    log.lock().unwrap().push(format!("{first} {}", login.unwrap_or_default()));
    let mut words = first.split(' ');
    let (method, target) = (words.next().unwrap(), words.next().unwrap());
    let place = target.trim_start_matches("http://").split('/').next().unwrap();
    let mut server = TcpStream::connect(place).unwrap();
    if method == "CONNECT" {
        client.write_all(b"HTTP/1.1 200 Fine\r\n\r\n").unwrap();
    } else {
        let rest = target.split_once(place).unwrap().1;
        let head = head.replace(target, rest).replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n");
        server.write_all(head.as_bytes()).unwrap();
    }
    let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to);
    });
    let mut buffer = [0; 16384];
    while let Ok(n @ 1..) = server.read(&mut buffer) {
        if client.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    let _ = client.shutdown(std::net::Shutdown::Both);
}
