//! `/proc/<pid>/status`, as far as confinement shows in it.

/// The lines that tell whether a process is confined.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Status {
    pub(crate) name: String,
    /// Real, effective, saved, file system.
    pub(crate) uids: Vec<u32>,
    /// The same order.
    pub(crate) gids: Vec<u32>,
    pub(crate) groups: Vec<u32>,
    /// Inheritable, permitted, effective, bounding, ambient.
    pub(crate) capabilities: Vec<u64>,
    pub(crate) no_new_privs: bool,
    /// 2 is a filter.
    pub(crate) seccomp: u32,
    pub(crate) filters: u32,
}

impl Status {
    /// Parses the file. A line that is missing leaves its field at a value that no check accepts.
    pub(crate) fn parse(text: &str) -> Self {
        let mut status = Status { groups: vec![u32::MAX], ..Status::default() };
        for line in text.lines() {
            let Some((key, value)) = line.split_once(':') else { continue };
            let value = value.trim();
            let numbers = || value.split_whitespace().map(|n| n.parse().unwrap_or(u32::MAX)).collect();
            match key {
                "Name" => value.clone_into(&mut status.name),
                "Uid" => status.uids = numbers(),
                "Gid" => status.gids = numbers(),
                "Groups" => status.groups = numbers(),
                "CapInh" | "CapPrm" | "CapEff" | "CapBnd" | "CapAmb" => {
                    status.capabilities.push(u64::from_str_radix(value, 16).unwrap_or(u64::MAX));
                }
                "NoNewPrivs" => status.no_new_privs = value == "1",
                "Seccomp" => status.seccomp = value.parse().unwrap_or(0),
                "Seccomp_filters" => status.filters = value.parse().unwrap_or(0),
                _ => {}
            }
        }
        status
    }

    /// What differs from a process of ours as `uid:gid` in exactly these supplementary groups with nothing left, apart from
    /// its filter; `None` if nothing does.
    pub(crate) fn identity_differs(&self, uid: u32, gid: u32, groups: &[u32]) -> Option<&'static str> {
        if self.uids != [uid; 4] {
            return Some("uid");
        }
        if self.gids != [gid; 4] {
            return Some("gid");
        }
        if self.groups != groups {
            return Some("supplementary groups");
        }
        if self.capabilities != [0; 5] {
            return Some("capabilities");
        }
        if !self.no_new_privs {
            return Some("no_new_privs");
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "Name:\tdoor\nUid:\t7\t7\t7\t7\nGid:\t8\t8\t8\t8\nGroups:\t \nCapInh:\t0000000000000000\n\
        CapPrm:\t0000000000000000\nCapEff:\t0000000000000000\nCapBnd:\t0000000000000000\nCapAmb:\t0000000000000000\n\
        NoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t2\n";

    #[test]
    fn a_status_is_accepted_only_with_every_line_in_order() {
        let good = Status::parse(GOOD);
        assert_eq!(good.identity_differs(7, 8, &[]), None);
        assert_eq!((good.seccomp, good.filters, good.name.as_str()), (2, 2, "door"));
        let cases = [
            ("Uid:\t7\t7\t7\t7", "Uid:\t7\t7\t0\t7", "uid"),
            ("Gid:\t8\t8\t8\t8", "Gid:\t8\t8\t8", "gid"),
            ("Groups:\t ", "Groups:\t0 ", "supplementary groups"),
            ("Groups:\t \n", "", "supplementary groups"),
            ("CapBnd:\t0000000000000000", "CapBnd:\t0000000000000100", "capabilities"),
            ("CapAmb:\t0000000000000000\n", "", "capabilities"),
            ("CapEff:\t0000000000000000", "CapEff:\tnonsense", "capabilities"),
            ("NoNewPrivs:\t1", "NoNewPrivs:\t0", "no_new_privs"),
        ];
        for (from, to, expected) in cases {
            assert!(GOOD.contains(from), "{from}");
            assert_eq!(
                Status::parse(&GOOD.replace(from, to)).identity_differs(7, 8, &[]),
                Some(expected),
                "{to}"
            );
        }
        let two = Status::parse(&GOOD.replace("Groups:\t ", "Groups:\t8 9 "));
        assert_eq!(two.identity_differs(7, 8, &[8, 9]), None);
        for other in [&[][..], &[8], &[9, 8], &[8, 9, 10]] {
            assert_eq!(two.identity_differs(7, 8, other), Some("supplementary groups"), "{other:?}");
        }
        assert!(Status::parse("").identity_differs(7, 8, &[]).is_some());
    }
}
