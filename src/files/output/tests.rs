//! Both ways of writing: without a name, and under a temporary one where the file system knows no nameless files.

use super::*;

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs_err::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// An output in this folder, with a temporary name whatever the file system can do.
fn named(path: &Path) -> Output {
    let way = Way::Named { part: None, target: path.to_owned(), permissions: Permissions::from_mode(0o640) };
    Output { path: path.to_owned(), way }
}

type Make = fn(&Path) -> Output;
const WAYS: [(&str, Make); 2] = [("nameless", |path| Output::create(path, &[]).unwrap()), ("named", named)];

#[test]
fn an_output_is_whole_or_not_there() {
    for (way, make) in WAYS {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        drop(make(&path));
        assert!(names(folder.path()).is_empty(), "{way}: an output that was not written left something");
        for older in ["", "first", "second"] {
            let mut output = make(&path);
            output.write_all(b"half").unwrap();
            let before = fs_err::read_to_string(&path).unwrap_or_default();
            assert_eq!(before, older, "{way}: the older file is changed before the new one is whole");
            drop(output);
            assert_eq!(fs_err::read_to_string(&path).unwrap_or_default(), older, "{way}");
            let mut output = make(&path);
            let text = if older.is_empty() { "first" } else { "second" };
            output.write_all(text.as_bytes()).unwrap();
            output.keep().unwrap();
            assert_eq!(fs_err::read_to_string(&path).unwrap(), text, "{way}");
            assert_eq!(names(folder.path()), ["out"], "{way}");
        }
        make(&path).keep().unwrap();
        assert_eq!(fs_err::read_to_string(&path).unwrap(), "", "{way}: an output without a byte is an empty file");
    }
}

#[test]
fn two_writers_of_one_name_do_not_meet() {
    for (way, make) in WAYS {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let (mut one, mut two) = (make(&path), make(&path));
        for _ in 0..10 {
            one.write_all(b"1").unwrap();
            two.write_all(b"2").unwrap();
        }
        two.keep().unwrap();
        assert_eq!(fs_err::read_to_string(&path).unwrap(), "2".repeat(10), "{way}");
        one.keep().unwrap();
        assert_eq!(fs_err::read_to_string(&path).unwrap(), "1".repeat(10), "{way}: the last has the name");
        assert_eq!(names(folder.path()), ["out"], "{way}");
    }
}

#[test]
fn permissions_of_an_older_file_are_kept_and_private_is_private() {
    let folder = tempfile::tempdir().unwrap();
    let mode = |name: &str| fs_err::metadata(folder.path().join(name)).unwrap().permissions().mode() & 0o777;
    Output::private(&folder.path().join("history"), &[]).unwrap().keep().unwrap();
    assert_eq!(mode("history"), 0o600);
    let shared = folder.path().join("shared");
    fs_err::write(&shared, "").unwrap();
    fs_err::set_permissions(&shared, Permissions::from_mode(0o664)).unwrap();
    Output::private(&shared, &[]).unwrap().keep().unwrap();
    assert_eq!(mode("shared"), 0o664);
}

#[test]
fn what_cannot_be_an_output_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs_err::os::unix::fs::symlink("b", at("a")).unwrap();
    fs_err::os::unix::fs::symlink("a", at("b")).unwrap();
    fs_err::write(at("file"), "x").unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    rustix::fs::mknodat(CWD, at("fifo"), rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let long = "n".repeat(300);
    for (name, wanted) in [
        ("", "it is a folder"),
        ("new/", "it is a folder"),
        ("none/new", "No such file or directory"),
        ("file/new", "Not a directory"),
        ("a", "Too many levels of symbolic links"),
        ("socket", "No such device"),
        ("fifo", "nobody reads it"),
        (long.as_str(), "File name too long"),
    ] {
        let error = Output::create(&at(name), &[]).unwrap_err().to_string();
        assert!(error.starts_with("cannot write ") && error.contains(wanted), "{name}: {error}");
        assert!(!error.contains(".part"), "{name}: {error}");
    }
    assert!(matches!(Output::create(Path::new(""), &[]), Err(OutputError::Folder { .. })));
    let error = Output::create(&at("file"), &[&at("none"), &at("file")]).unwrap_err();
    assert!(matches!(error, OutputError::Input { .. }), "{error}");
    let error = Output::create(&at("new"), &[]).unwrap().reserve(Bytes(1 << 60)).unwrap_err();
    assert!(matches!(error, OutputError::NoRoom { .. }), "{error}");
    assert_eq!(fs_err::read_to_string(at("file")).unwrap(), "x");
    assert_eq!(names(folder.path()), ["a", "b", "fifo", "file", "socket"]);
}

#[test]
fn a_failed_write_says_what_can_be_done() {
    let output = Output::create(Path::new("/dev/full"), &[]).unwrap();
    let mut out = io::BufWriter::new(output);
    out.write_all(b"x").unwrap();
    let error = out.flush().unwrap_err();
    assert!(out.get_ref().fault(error).to_string().contains("/dev/full: the disk is full. Make room"));
    let large = out.get_ref().fault(ErrorKind::FileTooLarge.into());
    assert!(large.to_string().contains("ulimit -f"), "{large}");
    let _ = out.into_parts();
}
