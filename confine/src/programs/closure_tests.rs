use super::*;

/// A minimal ELF file: one PT_LOAD that maps the file at 0, PT_INTERP and PT_DYNAMIC.
fn elf(machine: u16, interpreter: &str, dynamic: &[(u64, &str)]) -> Vec<u8> {
    let mut strings = vec![0_u8];
    let mut entries = Vec::new();
    for (tag, text) in dynamic {
        entries.push((*tag, strings.len() as u64));
        strings.extend_from_slice(text.as_bytes());
        strings.push(0);
    }
    let interpreter_at = 64 + 3 * 56;
    let strings_at = interpreter_at + interpreter.len() + 1;
    let dynamic_at = (strings_at + strings.len()).next_multiple_of(8);
    entries.push((5, strings_at as u64));
    entries.push((10, strings.len() as u64));
    entries.push((0, 0));
    let size = dynamic_at + entries.len() * 16;

    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(64, 0);
    file[18..20].copy_from_slice(&machine.to_le_bytes());
    file[32..40].copy_from_slice(&64_u64.to_le_bytes());
    file[54..56].copy_from_slice(&56_u16.to_le_bytes());
    file[56..58].copy_from_slice(&3_u16.to_le_bytes());
    for (kind, offset, length) in
        [(1_u32, 0, size), (3, interpreter_at, interpreter.len() + 1), (2, dynamic_at, entries.len() * 16)]
    {
        let mut header = Vec::new();
        header.extend_from_slice(&kind.to_le_bytes());
        header.extend_from_slice(&4_u32.to_le_bytes());
        for value in [offset, offset, offset, length, length, 8] {
            header.extend_from_slice(&(value as u64).to_le_bytes());
        }
        file.extend_from_slice(&header);
    }
    file.extend_from_slice(interpreter.as_bytes());
    file.push(0);
    file.extend_from_slice(&strings);
    file.resize(dynamic_at, 0);
    for (tag, value) in entries {
        file.extend_from_slice(&tag.to_le_bytes());
        file.extend_from_slice(&value.to_le_bytes());
    }
    file
}

struct Tree(PathBuf);

impl Tree {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("confine-closure-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Tree(path.canonicalize().unwrap())
    }

    fn put(&self, path: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const NEEDED: u64 = 1;
const RPATH: u64 = 15;
const RUNPATH: u64 = 29;

fn names(paths: &BTreeSet<PathBuf>, tree: &Tree) -> Vec<String> {
    paths
        .iter()
        .filter_map(|path| path.strip_prefix(&tree.0).ok())
        .map(|path| path.display().to_string())
        .collect()
}

#[test]
fn libraries_are_found_by_origin_and_transitively() {
    let tree = Tree::new("origin");
    let loader = tree.put("lib/loader", &elf(62, "", &[]));
    tree.put("lib/one.so", &elf(62, "", &[(NEEDED, "two.so"), (RUNPATH, "${ORIGIN}/deep")]));
    tree.put("lib/deep/two.so", &elf(62, "", &[(NEEDED, "one.so"), (NEEDED, "absent.so")]));
    // Another machine's library of the same name is no candidate.
    tree.put("other/one.so", &elf(183, "", &[]));
    let program = tree.put(
        "bin/program",
        &elf(
            62,
            loader.to_str().unwrap(),
            &[(NEEDED, "one.so"), (RUNPATH, "$ORIGIN/../other:$ORIGIN/../lib")],
        ),
    );
    let mut closure = Closure::default();
    closure.add(&program);
    assert_eq!(names(&closure.executable, &tree), ["lib/loader"]);
    assert_eq!(names(&closure.readable, &tree), ["lib/deep/two.so", "lib/one.so"]);
}

#[test]
fn an_rpath_is_inherited_and_a_runpath_is_not() {
    for (tag, expected) in [(RPATH, vec!["lib/one.so", "lib/two.so"]), (RUNPATH, vec!["lib/one.so"])] {
        let tree = Tree::new(&format!("inherit-{tag}"));
        tree.put("lib/one.so", &elf(62, "", &[(NEEDED, "two.so")]));
        tree.put("lib/two.so", &elf(62, "", &[]));
        let program = tree.put("program", &elf(62, "", &[(NEEDED, "one.so"), (tag, "$ORIGIN/lib")]));
        let mut closure = Closure::default();
        closure.add(&program);
        assert_eq!(names(&closure.readable, &tree), expected, "{tag}");
    }
}

#[test]
fn a_script_brings_its_interpreter_and_what_that_needs() {
    let tree = Tree::new("script");
    tree.put("lib/one.so", &elf(62, "", &[]));
    let shell = tree.put("shell", &elf(62, "", &[(NEEDED, "one.so"), (RPATH, "$ORIGIN/lib")]));
    let script = tree.put("script", format!("#! {} -e\necho\n", shell.display()).as_bytes());
    let mut closure = Closure::default();
    closure.add(&script);
    assert_eq!(names(&closure.executable, &tree), ["shell"]);
    assert_eq!(names(&closure.readable, &tree), ["lib/one.so"]);

    let relative = tree.put("relative", b"#!shell\n");
    let mut closure = Closure::default();
    closure.add(&relative);
    assert_eq!(closure, Closure::default());
}

#[test]
fn a_relative_search_path_finds_nothing() {
    let tree = Tree::new("relative-path");
    tree.put("lib/one.so", &elf(62, "", &[]));
    let program = tree.put("program", &elf(62, "", &[(NEEDED, "one.so"), (RUNPATH, "lib:.")]));
    let mut closure = Closure::default();
    closure.add(&program);
    assert_eq!(closure, Closure::default());
}

#[test]
fn no_cut_or_changed_elf_file_breaks_the_reader() {
    let tree = Tree::new("cut");
    let whole = elf(62, "/lib/loader", &[(NEEDED, "one.so"), (RUNPATH, "$ORIGIN")]);
    for length in 0..whole.len() {
        let path = tree.put("cut", &whole[..length]);
        let _ = Elf::read(&path);
    }
    for place in 0..whole.len() {
        for value in [0, 0x7f, 0xff] {
            let mut changed = whole.clone();
            changed[place] = value;
            let path = tree.put("changed", &changed);
            let _ = Elf::read(&path);
            Closure::default().add(&path);
        }
    }
}

#[test]
fn the_shell_of_this_host_has_a_loader_and_a_c_library() {
    let mut closure = Closure::default();
    closure.add(&Path::new("/bin/sh").canonicalize().unwrap());
    assert!(closure.executable.iter().any(|path| path.display().to_string().contains("ld-")), "{closure:?}");
    assert!(closure.readable.iter().any(|path| path.display().to_string().contains("libc")), "{closure:?}");
}
