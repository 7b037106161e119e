//! Names of programs that mean that somebody is there: terminals, multiplexers, remote logins, editors. And of those that a
//! user goes on using although an agent has started them.

use registry::MachineProcess;

/// Longest name that the kernel keeps of a thread.
const KERNEL_NAME: usize = 15;

/// Programs that show a terminal to somebody, or run agents for an editor. A wrong name here only spares a process.
const TERMINAL_HOSTS: &[&str] = &[
    // Multiplexers: a session that nobody is attached to is meant to wait.
    "tmux",
    "screen",
    "zellij",
    "dtach",
    "abduco",
    "byobu",
    "dvtm",
    "shpool",
    "tmate",
    "wezterm-mux-server",
    // Remote logins and consoles.
    "sshd",
    "sshd-session",
    "sshd-auth",
    "dropbear",
    "mosh-server",
    "etserver",
    "etterminal",
    "ttyd",
    "gotty",
    "upterm",
    "in.telnetd",
    "telnetd",
    "login",
    "agetty",
    "getty",
    "cockpit-bridge",
    // Terminal emulators.
    "gnome-terminal",
    "gnome-terminal-server",
    "kgx",
    "gnome-console",
    "ptyxis",
    "ptyxis-agent",
    "konsole",
    "yakuake",
    "xterm",
    "uxterm",
    "urxvt",
    "urxvtd",
    "rxvt",
    "st",
    "alacritty",
    "kitty",
    "foot",
    "footserver",
    "wezterm",
    "wezterm-gui",
    "ghostty",
    "tilix",
    "terminator",
    "xfce4-terminal",
    "mate-terminal",
    "lxterminal",
    "qterminal",
    "terminology",
    "guake",
    "tilda",
    "hyper",
    "tabby",
    "warp",
    "warp-terminal",
    "rio",
    "cool-retro-term",
    "contour",
    "deepin-terminal",
    "blackbox",
    "termite",
    "sakura",
    // Editors.
    "code",
    "code-insiders",
    "code-oss",
    "codium",
    "vscodium",
    "code-server",
    "code-tunnel",
    "openvscode-server",
    "cursor",
    "windsurf",
    "positron",
    "trae",
    "kiro",
    "antigravity",
    "theia",
    "zed",
    "zed-editor",
    "zeditor",
    "zed-remote-server",
    "emacs",
    "emacsclient",
    "vim",
    "nvim",
    "gvim",
    "vi",
    "hx",
    "helix",
    "kak",
    "micro",
    "nano",
    "lapce",
    "fleet",
    "sublime_text",
    "idea",
    "pycharm",
    "webstorm",
    "goland",
    "clion",
    "rider",
    "rubymine",
    "phpstorm",
    "rustrover",
    "remote-dev-server",
    "studio",
    "jupyter",
    "jupyter-lab",
    "jupyter-notebook",
];

/// Directories of editors' servers, each with what follows where the server itself runs and none of its extensions.
const EDITOR_SERVERS: &[(&str, &[&str])] = &[
    ("/.vscode-server/", &["bin/", "cli/", "code-"]),
    ("/.vscode-server-insiders/", &["bin/", "cli/", "code-"]),
    ("/.vscode-remote/", &["bin/"]),
    ("/.vscodium-server/", &["bin/"]),
    ("/.cursor-server/", &["bin/", "cli/", "cursor-"]),
    ("/.windsurf-server/", &["bin/"]),
    ("/.zed_server/", &[""]),
    ("/.cache/JetBrains/", &[""]),
];

/// Programs that users and desktops go on using whoever started them first.
const USER_PROGRAMS: &[&str] = &[
    "firefox",
    "firefox-bin",
    "firefox-esr",
    "chrome",
    "google-chrome",
    "chromium",
    "chromium-browser",
    "brave",
    "msedge",
    "opera",
    "vivaldi-bin",
    "thunderbird",
    "slack",
    "discord",
    "spotify",
    "obsidian",
    "telegram-desktop",
    "nautilus",
    "dolphin",
    "evince",
    "okular",
    "eog",
    "gpg-agent",
    "keyboxd",
    "dirmngr",
    "scdaemon",
    "ssh-agent",
    "dbus-daemon",
    "dbus-broker",
    "dbus-launch",
    "gnome-keyring-d",
    "gnome-keyring-daemon",
    "gvfsd",
    "at-spi-bus-laun",
    "xdg-desktop-por",
    "pipewire",
    "wireplumber",
    "pulseaudio",
    "Xorg",
    "Xwayland",
    "Xvfb",
    "dconf-service",
    "dockerd",
    "containerd",
    "containerd-shim",
    "containerd-shim-runc-v2",
    "conmon",
    "systemd",
    "agent-proxy",
];

/// Programs that begin a login's or desktop's POSIX session: that one lives means nothing for what is in it.
const SESSION_MANAGERS: &[&str] = &[
    "systemd",
    "gdm-wayland-session",
    "gdm-x-session",
    "gdm-session-worker",
    "gnome-session",
    "gnome-session-binary",
    "gnome-shell",
    "startplasma-wayland",
    "startplasma-x11",
    "plasma_session",
    "ksmserver",
    "sddm-helper",
    "lightdm",
    "xfce4-session",
    "cinnamon-session",
    "mate-session",
    "lxsession",
    "sway",
    "Hyprland",
    "niri",
    "weston",
    "i3",
    "Xorg",
    "xinit",
    "startx",
    "SessionLeader",
    "init",
    "cron",
    "crond",
    "atd",
];

/// Inits that adopt orphans and start services, each in a cgroup of its own under systemd.
const SERVICE_MANAGERS: &[&str] = &["systemd", "init", "upstart", "openrc-init", "runit", "dinit", "shepherd"];

/// First processes of containers that start nothing.
const IDLE_INITS: &[&str] = &["sleep", "tail", "pause", "catatonit"];

/// Returns true for a process that shows a terminal, or runs agents for an editor.
pub(super) fn is_terminal_host(process: &MachineProcess) -> bool {
    let serves = |path: &str| {
        EDITOR_SERVERS.iter().any(|(directory, parts)| {
            path.split_once(directory).is_some_and(|(_, rest)| parts.iter().any(|part| rest.starts_with(part)))
        })
    };
    let mut paths = process.program.iter().chain(process.argv.iter().take(3));
    has_name(process, TERMINAL_HOSTS) || paths.any(|path| serves(path))
}

/// Returns true for a program that its user goes on using. A browser without a window, or driven by a program, is a tool.
pub(super) fn is_user_program(process: &MachineProcess) -> bool {
    // `--type=`: a helper, which its browser speaks for.
    let is_tool =
        |word: &String| ["--headless", "--remote-debugging", "--type="].iter().any(|flag| word.starts_with(flag));
    is_terminal_host(process) || (has_name(process, USER_PROGRAMS) && !process.argv.iter().any(is_tool))
}

/// Returns true for the process of a login or a desktop that others are started from.
pub(super) fn is_session_manager(process: &MachineProcess) -> bool {
    has_name(process, SESSION_MANAGERS)
}

/// Returns true for an init, or the user's `systemd --user`.
pub(super) fn is_service_manager(process: &MachineProcess) -> bool {
    let is_init = process.id.pid == 1 && has_name(process, SERVICE_MANAGERS);
    is_init || is_systemd(process) && process.argv.iter().any(|word| word == "--user")
}

/// Returns true for systemd, which puts each service into a cgroup.
pub(super) fn is_systemd(process: &MachineProcess) -> bool {
    has_name(process, &["systemd"])
}

/// Returns true for a container's first process that starts nothing itself.
pub(super) fn is_idle_init(process: &MachineProcess) -> bool {
    process.is_namespace_init && has_name(process, IDLE_INITS)
}

/// Returns true for a proxy, fork server or namespace init of agent-proxy, in any host.
pub(super) fn is_supervisor(process: &MachineProcess) -> bool {
    process.name.starts_with("ap ") || process.argv.first().is_some_and(|title| title.starts_with("agent-proxy: "))
}

fn has_name(process: &MachineProcess, names: &[&str]) -> bool {
    let kernel = stem(&process.name);
    let is_cut = process.name.len() >= KERNEL_NAME;
    let others = process.argv.first().into_iter().chain(&process.program).map(|path| stem(path));
    others.chain([kernel]).any(|name| names.contains(&name))
        || is_cut && names.iter().any(|name| name.starts_with(kernel))
}

/// The name in a path, or at the beginning of a title: `tmux: server`, `sshd: user@pts/0`, `-bash`.
fn stem(path: &str) -> &str {
    let title = path.split([':', ' ']).next().unwrap_or(path);
    title.rsplit('/').next().unwrap_or(title).trim_start_matches('-').trim_end_matches(" (deleted)")
}
