//! Which share of a plan this process does: as the command line says, or as the engine that started
//! it does in its environment.

use transfer::fleet::FleetShare;

use crate::failure::Failure;

/// The index of a task of a Slurm array, of the first one, the step between them, and their number.
const SLURM: [&str; 4] = [
    "SLURM_ARRAY_TASK_ID",
    "SLURM_ARRAY_TASK_MIN",
    "SLURM_ARRAY_TASK_STEP",
    "SLURM_ARRAY_TASK_COUNT",
];
/// The index of a pod of a Kubernetes Indexed Job; their number is told to nobody.
const KUBERNETES: &str = "JOB_COMPLETION_INDEX";

/// The share by the environment, with the number of shares where it was given.
pub(super) fn by_environment(
    get: &dyn Fn(&str) -> Option<String>,
    count: Option<u64>,
) -> Result<FleetShare, Failure> {
    let number = |name: &str| {
        let Some(text) = get(name) else { return Ok(None) };
        let wrong = |_| Failure::usage(format!("{name}: {text:?} is not a number"));
        text.parse::<u64>().map(Some).map_err(wrong)
    };
    let [id, first, step, tasks] = SLURM;
    if let Some(id) = number(id)? {
        let (first, step) = (number(first)?.unwrap_or(0), number(step)?.unwrap_or(1).max(1));
        let tasks = count.or(number(tasks)?);
        let tasks = tasks.ok_or_else(|| Failure::usage("how many tasks are there? add --of N"))?;
        // With --of a single task that is run again has its number among all of them.
        let index = match count {
            Some(_) => id,
            None => id.saturating_sub(first) / step,
        };
        return Ok(FleetShare::of(index, tasks)?);
    }
    if let Some(index) = number(KUBERNETES)? {
        let why = "how many pods are there (completions of the Job)? add --of N";
        let count = count.ok_or_else(|| Failure::usage(why))?;
        return Ok(FleetShare::of(index, count)?);
    }
    Err(Failure::usage(
        "no shards selected: add --all, or --shard I/N, or run it as a task of a Slurm array job or a pod of an Indexed Job",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_say_which_share_it_is() {
        let share = |all: &[(&str, &str)], count| {
            let get = |name: &str| {
                let found = all.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            by_environment(&get, count).ok()
        };
        let of = |index, count| FleetShare::of(index, count).ok();
        let slurm = |id, first, step, count| {
            [(SLURM[0], id), (SLURM[1], first), (SLURM[2], step), (SLURM[3], count)]
        };
        assert_eq!(share(&slurm("0", "0", "1", "4"), None), of(0, 4));
        assert_eq!(share(&slurm("4", "1", "1", "4"), None), of(3, 4));
        assert_eq!(share(&slurm("15", "5", "5", "3"), None), of(2, 3));
        assert_eq!(share(&slurm("7", "7", "1", "1"), Some(10)), of(7, 10));
        // Array jobs of single numbers: 1,5,9.
        assert_eq!(share(&slurm("9", "1", "1", "3"), None), None);
        assert_eq!(share(&[(KUBERNETES, "3")], Some(5)), of(3, 5));
        assert_eq!(share(&[(KUBERNETES, "3")], None), None);
        assert_eq!(share(&[(KUBERNETES, "x")], Some(5)), None);
        assert_eq!(share(&[], Some(5)), None);
    }
}
