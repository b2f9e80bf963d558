//! Little memory.

use super::*;
use blackbox::cgroup::MemoryGroup;
use blackbox::launch::Serve;
use blackbox::peers::diskferry;

const LIMIT: u64 = 128 * MIB;

#[test]
fn no_copy_of_twenty_is_killed_in_a_group_of_128_mib_or_comes_near_its_end() {
    if !has_tools() {
        return;
    }
    let Some(group) = MemoryGroup::new(LIMIT) else { return };
    let temp = TempDir::new();
    let len = 200 * MIB;
    let source = cold(temp.path(), "source", len);
    let server = Serve::device(["random", "200M", "seed=5"]).start();
    // Where the disk is busy with others, pages may wait for it now and then.
    let mut near = Vec::new();
    for round in 0..20 {
        let target = temp.join("target");
        let mut command = group.command(&diskferry());
        command.arg("copy");
        let command = match round % 4 {
            0 | 1 => command.arg(&source),
            2 => command.arg(server.uri("")),
            _ => command.args(["--request-size", "64k"]).arg(named(&source, "none")),
        };
        group.forget_peak();
        run(command.arg(&target)).succeeded();
        let (peak, reached) = group.peak();
        if peak >= LIMIT * 7 / 8 || reached > 0 {
            near.push((round, peak, reached));
        }
        if round < 4 {
            assert!(is_same(&source, &target));
            // What we compared by reading it is no longer of the group.
            drop_pages(&source);
        }
        std::fs::remove_file(&target).unwrap();
    }
    assert_eq!(group.kills(), 0);
    assert!(near.len() <= 5, "round, bytes, times at the limit: {near:?}");
}
