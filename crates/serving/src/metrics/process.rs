//! What the system says of this process (proc(5)), under the names that Prometheus' own clients
//! give to it. What cannot be read is left out.

use std::fs;
use std::time::Duration;

use super::text::Text;

/// Adds it.
pub(super) fn tell(text: &mut Text) {
    let Some(told) = ProcessStat::read() else { return };
    text.family("process_cpu_seconds", "counter", "Processor time used");
    text.sample("process_cpu_seconds_total", &[], told.cpu);
    let gauges = [
        ("process_resident_memory_bytes", "Resident memory", Some(told.resident)),
        ("process_virtual_memory_bytes", "Virtual memory", Some(told.addresses)),
        ("process_threads", "Threads", Some(told.threads)),
        ("process_open_fds", "Open descriptors", descriptors()),
        ("process_max_fds", "Limit of open descriptors", most_descriptors()),
        ("process_start_time_seconds", "Start time, since 1970", told.began()),
    ];
    for (name, help, value) in gauges {
        if let Some(value) = value {
            text.family(name, "gauge", help);
            text.sample(name, &[], value);
        }
    }
}

/// Of `/proc/self/stat`.
struct ProcessStat {
    /// Seconds.
    cpu: f64,
    threads: u64,
    /// Ticks after the system.
    start: u64,
    /// Bytes.
    addresses: u64,
    resident: u64,
}

impl ProcessStat {
    fn read() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/self/stat").ok()?)
    }

    /// Reads the fields behind the name, which may have any bytes in it. The first is the third of
    /// the manual page.
    fn parse(stat: &str) -> Option<Self> {
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        let number = |field: usize| fields.get(field - 3)?.trim().parse::<u64>().ok();
        let page = u64::try_from(rustix::param::page_size()).ok()?;
        Some(Self {
            cpu: since(number(14)?.checked_add(number(15)?)?).as_secs_f64(),
            threads: number(20)?,
            start: number(22)?,
            addresses: number(23)?,
            resident: number(24)?.saturating_mul(page),
        })
    }

    /// Seconds since 1970.
    fn began(&self) -> Option<u64> {
        let stat = fs::read_to_string("/proc/stat").ok()?;
        let boot = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
        boot.trim().parse::<u64>().ok()?.checked_add(since(self.start).as_secs())
    }
}

fn since(ticks: u64) -> Duration {
    Duration::from_millis(ticks.saturating_mul(1000) / rustix::param::clock_ticks_per_second())
}

fn descriptors() -> Option<u64> {
    // The one by which they are listed is closed again.
    u64::try_from(fs::read_dir("/proc/self/fd").ok()?.count()).ok()?.checked_sub(1)
}

fn most_descriptors() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_program_does_not_shift_the_fields() {
        let numbers: Vec<String> = (4..52).map(|field| field.to_string()).collect();
        let stat = format!("1 (a) b) S {}\n", numbers.join(" "));
        let told = ProcessStat::parse(&stat).unwrap();
        assert_eq!((told.threads, told.start, told.addresses), (20, 22, 23));
        assert!(ProcessStat::parse("1 (a) S 4").is_none());
        assert!(ProcessStat::read().is_some_and(|told| told.threads > 0 && told.resident > 0));
        assert!(descriptors().is_some_and(|open| open < most_descriptors().unwrap()));
    }
}
