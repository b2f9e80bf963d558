//! What verbs have in common besides their options: signals, variables of the environment, files.
//! The manual pages and the reference are made from it.

use clap::Command;

use crate::verb::Verb;

/// A subject, and the verbs that it concerns.
pub(crate) struct Topic {
    /// The title of its section.
    pub(crate) title: &'static str,
    /// Whether it concerns a verb, by its table entry and its options.
    pub(crate) concerns: fn(&Verb, &Command) -> bool,
    /// Names, and what each is or does.
    pub(crate) entries: &'static [(&'static str, &'static str)],
}

pub(crate) const SIGNALS: &str = "SIGNALS";
pub(crate) const ENVIRONMENT: &str = "ENVIRONMENT";
pub(crate) const FILES: &str = "FILES";

/// All of them, in the order of a manual page.
pub(crate) static TOPICS: &[Topic] = &[
    Topic {
        title: SIGNALS,
        concerns: |_, command| has(command, "daemon"),
        entries: &[
            (
                "SIGTERM, SIGINT, SIGQUIT",
                "Shut down gracefully: sockets are removed, received requests are completed, \
                 clients that stop reading are disconnected (--stop-timeout), and filters write \
                 back. With --run, the first signal goes to the command. A second signal, at \
                 least half a second later, ends the server at once with exit status 1; so does a \
                 shutdown without progress for 30 seconds.",
            ),
            (
                "SIGHUP",
                "Like SIGTERM, unless ignored at startup (nohup). A server with --config or \
                 --daemon, or under a service manager, reloads instead: it reopens its --log \
                 file, and re-reads TLS files and --config.",
            ),
            (
                "SIGUSR1",
                "Writes a report to the log: clients, limits, requests. Filters report as well.",
            ),
            ("SIGXFSZ", "Ignored: a write beyond the limit of a file's size fails."),
        ],
    },
    Topic {
        title: SIGNALS,
        concerns: |verb, _| verb.status.contains("SIGINT"),
        entries: &[
            (
                "SIGINT, SIGTERM, SIGHUP",
                "Stop the work; files created for it are removed, and the exit status is 130, 143 \
                 or 129. A second signal does not wait for unresponsive devices. SIGHUP stays \
                 ignored if it was ignored at startup (nohup).",
            ),
            ("SIGUSR1", "Shows the progress at once, on standard error."),
            ("SIGXFSZ", "Ignored: a write beyond the limit of a file's size fails."),
        ],
    },
    Topic {
        title: ENVIRONMENT,
        concerns: |_, command| has(command, "daemon"),
        entries: &[
            (
                "LISTEN_FDS, LISTEN_PID",
                "Sockets from systemd or another service manager: the server listens only on \
                 these.",
            ),
            (
                "NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID",
                "The server notifies the service manager when clients can connect, of reloads and \
                 of its shutdown, and feeds the watchdog if requested.",
            ),
            (
                "JOURNAL_STREAM",
                "If it names standard error, lines of the log have a priority for the journal.",
            ),
            (
                "uri, nbd, unixsocket, port, exportname, tls, tls_certificates, tls_psk",
                "Set for the command of --run: the URI of the server, and its parts.",
            ),
        ],
    },
    Topic {
        title: ENVIRONMENT,
        concerns: |_, command| opens_disks(command),
        entries: &[
            (
                "TMPDIR",
                "Directory for unlinked temporary files (overlays of cow and cache, images on \
                 their way to a pipe) and for a private socket. Default: /var/tmp or /tmp.",
            ),
            ("HOME", "The base of paths to certificates, keys and .netrc: see FILES."),
            ("USER", "The user whose key is taken from a file of keys, if the URI names no user."),
            (
                "http_proxy, https_proxy, all_proxy, no_proxy",
                "Proxies for the device http; all but http_proxy also in capital letters. proxy= takes precedence.",
            ),
            (
                "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_PROFILE, AWS_REGION, \
                 AWS_DEFAULT_REGION, AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL",
                "Keys and settings of the device s3, as for AWS' own tools; docs/s3.md lists all \
                 of them.",
            ),
            ("NBDKIT_PLUGINDIR", "The directory to search first for nbdkit's plugins."),
            (
                "any name",
                "Secrets may be named as -env:NAME instead of being written on the command line: keys for \
                 TLS, passwords, tokens and cookies of http.",
            ),
        ],
    },
    Topic {
        title: ENVIRONMENT,
        concerns: |_, command| has(command, "allow-external"),
        entries: &[(
            "DISKFERRY_ALLOW_EXTERNAL",
            "Under the names qemu-img and qemu-nbd: the default of --allow-external, instead of \
             beside. For callers whose command lines cannot be changed.",
        )],
    },
    Topic {
        title: ENVIRONMENT,
        concerns: |_, command| has(command, "remote-program"),
        entries: &[(
            "DISKFERRY_SSH",
            "The command to run instead of ssh for ssh:// disks, with its options, quoted as for \
             a shell.",
        )],
    },
    Topic {
        title: ENVIRONMENT,
        concerns: |_, command| has(command, "of"),
        entries: &[
            (
                "SLURM_ARRAY_TASK_ID, SLURM_ARRAY_TASK_MIN, SLURM_ARRAY_TASK_STEP, SLURM_ARRAY_TASK_COUNT",
                "The share of a plan, in a task of a Slurm array job.",
            ),
            (
                "JOB_COMPLETION_INDEX",
                "The same in a pod of a Kubernetes Indexed Job; --of gives the number of shares.",
            ),
        ],
    },
    Topic {
        title: ENVIRONMENT,
        concerns: |verb, command| has(command, "progress") && verb.status.contains("SIGINT"),
        entries: &[(
            "LC_ALL, LC_CTYPE, LANG",
            "The bar is drawn with blocks if the locale uses UTF-8.",
        )],
    },
    Topic {
        title: FILES,
        concerns: |_, command| has(command, "daemon"),
        entries: &[
            (
                "/etc/pki/nbdkit, ~/.pki/nbdkit, ~/.config/pki/nbdkit",
                "Directories of the server's certificate (root; others), with --tls and without \
                 --tls-certificates: ca-cert.pem, server-cert.pem, server-key.pem.",
            ),
            ("/etc/passwd, /etc/group", "Users and groups of --user and --group."),
        ],
    },
    Topic {
        title: FILES,
        concerns: |_, command| opens_disks(command),
        entries: &[
            (
                "/etc/pki/libnbd, ~/.pki/libnbd, ~/.config/pki/libnbd",
                "Directories of certificates for nbds:// (root; others), if the URI names none: \
                 ca-cert.pem, client-cert.pem, client-key.pem. Without any, the system's trusted \
                 certificates.",
            ),
            ("~/.netrc", "Logins for http, only with netrc=."),
            ("~/.aws/credentials, ~/.aws/config", "Keys and settings for s3."),
            (
                "/usr/lib/ARCH-linux-gnu/nbdkit/plugins, /usr/lib64/nbdkit/plugins, /usr/lib/nbdkit/plugins, below /usr/local too",
                "Directories of nbdkit's plugins, besides the directory that nbdkit --dump-config \
                 prints.",
            ),
        ],
    },
];

/// The entries for a verb, by title, in the order of a manual page.
pub(crate) fn of(
    verb: &Verb,
    command: &Command,
) -> Vec<(&'static str, Vec<(&'static str, &'static str)>)> {
    let mut found: Vec<(&str, Vec<_>)> = Vec::new();
    for topic in TOPICS.iter().filter(|topic| (topic.concerns)(verb, command)) {
        match found.iter_mut().find(|(title, _)| *title == topic.title) {
            Some((_, entries)) => entries.extend(topic.entries),
            None => found.push((topic.title, topic.entries.to_vec())),
        }
    }
    found
}

fn has(command: &Command, id: &str) -> bool {
    command.get_arguments().any(|arg| arg.get_id() == id)
}

fn opens_disks(command: &Command) -> bool {
    has(command, "open-timeout")
}
