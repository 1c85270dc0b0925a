//! Which paths a command says it writes to: redirections of a script, and targets of well-known programs.

use super::Write;
use crate::shell::takes_script;

/// Programs that write to every argument that is no option.
const EVERY: [&str; 10] =
    ["tee", "rm", "rmdir", "unlink", "shred", "truncate", "mkdir", "touch", "chmod", "chown"];
/// Programs that write to their last argument.
const LAST: [&str; 4] = ["mv", "cp", "install", "ln"];
/// Words before a command that do not change which one it is.
const BEFORE: [&str; 14] = [
    "!", "{", "builtin", "command", "do", "elif", "else", "env", "exec", "if", "nohup", "then", "time",
    "while",
];

/// The writes of an argument vector; for a shell with `-c`, of the script's commands.
pub(super) fn writes(program: &str, arguments: &[String]) -> Vec<Write> {
    if takes_script(program) {
        let script = arguments.iter().skip_while(|argument| !is_command_option(argument)).nth(1);
        return script.map(|script| script_writes(script)).unwrap_or_default();
    }
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    program_writes(program, &words)
}

/// `-c`, alone or among other letters (`-ec`).
fn is_command_option(argument: &str) -> bool {
    argument.starts_with('-') && !argument.starts_with("--") && argument.ends_with('c')
}

fn program_writes(program: &str, arguments: &[&str]) -> Vec<Write> {
    let name = program.rsplit('/').next().unwrap_or(program);
    let write = |path: &str| Write { path: path.to_owned(), signal: format!("`{name}`") };
    let plain = || without_options(arguments);
    if EVERY.contains(&name) || name == "patch" {
        plain().into_iter().map(write).collect()
    } else if LAST.contains(&name) {
        let target = arguments.iter().zip(arguments.iter().skip(1)).find_map(|(option, value)| {
            (*option == "-t" || *option == "--target-directory").then_some(*value)
        });
        let long = arguments.iter().find_map(|option| option.strip_prefix("--target-directory="));
        target.or(long).or(plain().last().copied()).into_iter().map(write).collect()
    } else if name == "sed" && arguments.iter().any(|option| in_place(option)) {
        plain().into_iter().map(|path| Write { path: path.to_owned(), signal: "`sed -i`".into() }).collect()
    } else if name == "dd" {
        let target = |word: &&str| word.strip_prefix("of=").map(write);
        arguments.iter().filter_map(target).collect()
    } else {
        Vec::new()
    }
}

fn in_place(option: &str) -> bool {
    option.starts_with("--in-place")
        || (option.starts_with('-') && !option.starts_with("--") && option.contains('i'))
}

fn without_options<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    let mut plain = Vec::new();
    let mut options = true;
    for argument in arguments {
        match *argument {
            "--" if options => options = false,
            option if options && option.starts_with('-') && option.len() > 1 => {}
            path => plain.push(path),
        }
    }
    plain
}

/// The writes of a script: every redirection, and every simple command as far as quoting tells it.
fn script_writes(script: &str) -> Vec<Write> {
    let mut writes = Vec::new();
    let mut command: Vec<String> = Vec::new();
    let mut tokens = Tokens { rest: script.chars().collect::<Vec<_>>().into_iter().peekable() }.peekable();
    while let Some(token) = tokens.next() {
        match token {
            Token::Word(word) => command.push(word),
            Token::End => simple_command(&std::mem::take(&mut command), &mut writes),
            Token::Redirect(operator) => {
                // Without a word behind it, it is none; `>&1` has a number there.
                if let Some(Token::Word(path)) = tokens.next_if(|next| matches!(next, Token::Word(_))) {
                    writes.push(Write { path, signal: format!("the redirection `{operator}`") });
                }
            }
        }
    }
    simple_command(&command, &mut writes);
    writes
}

fn simple_command(words: &[String], writes: &mut Vec<Write>) {
    let mut words =
        words.iter().map(String::as_str).skip_while(|word| BEFORE.contains(word) || assigns(word));
    let Some(program) = words.next() else { return };
    let arguments: Vec<&str> = words.collect();
    if takes_script(program) {
        if let Some(script) = arguments.iter().skip_while(|word| !is_command_option(word)).nth(1) {
            writes.extend(script_writes(script));
        }
        return;
    }
    writes.extend(program_writes(program, &arguments));
}

/// `NAME=value` before a command.
fn assigns(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

#[derive(Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    /// `>`, `>>`, `>|`, `&>`, `&>>`, with a number before it or not; a word follows.
    Redirect(&'static str),
    /// The end of a simple command.
    End,
}

/// A shell's words and operators, without any expansion.
struct Tokens {
    rest: std::iter::Peekable<std::vec::IntoIter<char>>,
}

impl Tokens {
    fn take(&mut self, wanted: char) -> bool {
        self.rest.next_if_eq(&wanted).is_some()
    }

    /// After the first `>`.
    fn redirect(&mut self, both: bool) -> Option<Token> {
        if self.take('>') {
            return Some(Token::Redirect(if both { "&>>" } else { ">>" }));
        }
        if !both && self.take('|') {
            return Some(Token::Redirect(">|"));
        }
        if self.take('&') {
            // `>&2` duplicates a descriptor, `>&file` writes to a file.
            if self.rest.peek().is_some_and(|c| c.is_ascii_digit() || *c == '-') {
                self.rest.next();
                return None;
            }
            return Some(Token::Redirect("&>"));
        }
        Some(Token::Redirect(if both { "&>" } else { ">" }))
    }

    /// A quoted part, its opening quote taken already.
    fn quoted(&mut self, quote: char, word: &mut String) {
        while let Some(c) = self.rest.next() {
            match c {
                c if c == quote => return,
                '\\' if quote == '"' => match self.rest.next() {
                    Some(c @ ('"' | '\\' | '$' | '`')) => word.push(c),
                    Some('\n') | None => {}
                    Some(c) => word.extend(['\\', c]),
                },
                c => word.push(c),
            }
        }
    }
}

impl Iterator for Tokens {
    type Item = Token;

    fn next(&mut self) -> Option<Token> {
        let mut word: Option<String> = None;
        loop {
            let Some(&c) = self.rest.peek() else { return word.map(Token::Word) };
            let ends_word = c.is_whitespace() || matches!(c, ';' | '|' | '&' | '(' | ')' | '>' | '<');
            if ends_word {
                // A number right before `>` is its descriptor and no word.
                let number = word.as_deref().is_some_and(|word| word.bytes().all(|b| b.is_ascii_digit()));
                if let Some(word) = word.take()
                    && !(c == '>' && number)
                {
                    return Some(Token::Word(word));
                }
            }
            self.rest.next();
            match c {
                '\n' | ';' | '|' | '(' | ')' => return Some(Token::End),
                '&' if self.take('>') => {
                    if let Some(token) = self.redirect(true) {
                        return Some(token);
                    }
                }
                '&' => return Some(Token::End),
                '>' => {
                    if let Some(token) = self.redirect(false) {
                        return Some(token);
                    }
                }
                '<' => {}
                c if c.is_whitespace() => {}
                '#' if word.is_none() => while self.rest.next_if(|c| *c != '\n').is_some() {},
                '\'' | '"' => self.quoted(c, word.get_or_insert_default()),
                '\\' => match self.rest.next() {
                    Some('\n') | None => {}
                    Some(c) => word.get_or_insert_default().push(c),
                },
                c => word.get_or_insert_default().push(c),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(program: &str, arguments: &[&str]) -> Vec<String> {
        let arguments: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
        writes(program, &arguments).into_iter().map(|write| write.path).collect()
    }

    #[test]
    fn targets_of_known_programs_are_seen() {
        let cases: [(&str, &[&str], &[&str]); 22] = [
            ("rm", &["-rf", "a", "b"], &["a", "b"]),
            ("rm", &["-f", "--", "-a"], &["-a"]),
            ("/bin/rm", &["a"], &["a"]),
            ("tee", &["-a", "log"], &["log"]),
            ("mkdir", &["-p", "a/b"], &["a/b"]),
            ("touch", &["a"], &["a"]),
            ("truncate", &["-s", "0", "a"], &["0", "a"]),
            ("chmod", &["600", "a"], &["600", "a"]),
            ("patch", &["a", "b.diff"], &["a", "b.diff"]),
            ("cp", &["-r", "a", "b"], &["b"]),
            ("cp", &["-t", "dir", "a", "b"], &["dir"]),
            ("cp", &["--target-directory=dir", "a"], &["dir"]),
            ("mv", &["a", "b"], &["b"]),
            ("ln", &["-s", "a", "b"], &["b"]),
            ("install", &["-m", "600", "a", "b"], &["b"]),
            ("sed", &["s/a/b/", "f"], &[]),
            ("sed", &["-i", "s/a/b/", "f"], &["s/a/b/", "f"]),
            ("sed", &["--in-place=.bak", "s/a/b/", "f"], &["s/a/b/", "f"]),
            ("sed", &["-ni", "p", "f"], &["p", "f"]),
            ("dd", &["if=a", "of=b"], &["b"]),
            ("cat", &["a"], &[]),
            ("python3", &["-c", "open('a','w')"], &[]),
        ];
        for (program, arguments, expected) in cases {
            assert_eq!(paths(program, arguments), expected, "{program} {arguments:?}");
        }
    }

    #[test]
    fn scripts_are_read_as_far_as_quoting_tells() {
        let cases: [(&str, &[&str]); 36] = [
            ("echo x > a", &["a"]),
            ("echo x >a", &["a"]),
            ("echo x>>a", &["a"]),
            ("echo x >| a", &["a"]),
            ("echo x &> a", &["a"]),
            ("echo x &>> a", &["a"]),
            ("echo x >& a", &["a"]),
            ("echo x 2> a", &["a"]),
            ("echo x 12>>a", &["a"]),
            ("echo x 2>&1", &[]),
            ("echo x 2>&1 >a", &["a"]),
            ("echo x >&-", &[]),
            ("echo x > 'a b'", &["a b"]),
            ("echo x > \"a\\\"b\"", &["a\"b"]),
            ("echo x > a\\ b", &["a b"]),
            ("echo '> a'", &[]),
            ("echo \"> a\"", &[]),
            ("echo \\> a", &[]),
            ("cat < a", &[]),
            ("rm a; rm b", &["a", "b"]),
            ("true && rm a || rm b", &["a", "b"]),
            ("ls | tee a", &["a"]),
            ("(cd x; rm a)", &["a"]),
            ("sleep 1 & rm a", &["a"]),
            ("rm a\nrm b", &["a", "b"]),
            ("A=1 B=2 rm a", &["a"]),
            ("env A=1 rm a", &["a"]),
            ("if true; then rm a; fi", &["a"]),
            ("for f in 1; do rm a; done", &["a"]),
            ("! rm a", &["a"]),
            ("echo rm a", &[]),
            ("# rm a > b", &[]),
            ("echo a#b > c", &["c"]),
            ("bash -c 'rm a'", &["a"]),
            ("sh -ec \"echo > a\"", &["a"]),
            ("echo >", &[]),
        ];
        for (script, expected) in cases {
            assert_eq!(paths("bash", &["-c", script]), expected, "{script:?}");
        }
    }

    #[test]
    fn a_shell_without_a_script_writes_nothing_that_is_seen() {
        assert!(paths("bash", &["script.sh", "> a"]).is_empty());
        assert!(paths("bash", &[]).is_empty());
        assert_eq!(paths("bash", &["-e", "-c", "rm a", "name"]), ["a"]);
    }

    #[test]
    fn no_script_makes_it_hang_or_panic() {
        for script in
            ["'", "\"", "\\", ">", ">>>", "&>&", "2>", "<<<", "\"\\", "((((", "\u{0}>\u{ffff}", "1>2>3>"]
        {
            let _ = paths("bash", &["-c", script]);
        }
        let deep = "bash -c ".repeat(2000);
        let _ = paths("bash", &["-c", &deep]);
    }
}
