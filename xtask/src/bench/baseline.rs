//! Plain reverse proxies next to interlock, where the host happens to have them: nginx and haproxy, one worker, on the
//! proxy's core. They read no MCP and decide nothing; they show what moving the bytes costs.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::host::{Core, find_program};
use crate::interrupt::pause;
use crate::process::{Process, free_port};

pub(crate) struct Baseline {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    pub(crate) process: Process,
}

/// Starts what is installed. One that does not come up is left out and named, because it is not what is measured.
pub(crate) fn start_all(scratch: &Path, server: SocketAddr) -> anyhow::Result<Vec<Baseline>> {
    let mut running = Vec::new();
    for (name, config) in [("nginx", nginx as fn(&Path, u16, SocketAddr) -> String), ("haproxy", haproxy)] {
        let Some(program) = find_program(name) else { continue };
        let folder = scratch.join(name);
        fs::create_dir_all(&folder)?;
        let port = free_port()?;
        let file = folder.join("config");
        fs::write(&file, config(&folder, port, server))?;
        let mut command = Command::new(program);
        match name {
            "nginx" => {
                command.arg("-p").arg(&folder).arg("-e").arg(folder.join("error.log")).arg("-c").arg(&file)
            }
            _ => command.arg("-db").arg("-f").arg(&file),
        };
        let process = Core::Proxy.start(command, None, Some(fs::File::create(folder.join("stderr"))?))?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if answers(address)? {
            running.push(Baseline { name, address, process });
        } else {
            let said = fs::read_to_string(folder.join("stderr")).unwrap_or_default();
            eprintln!("bench: {name} did not come up and is left out: {}", said.trim());
        }
    }
    Ok(running)
}

fn answers(address: SocketAddr) -> anyhow::Result<bool> {
    let deadline = Instant::now() + Duration::from_secs(3);
    while Instant::now() < deadline {
        if TcpStream::connect(address).is_ok() {
            return Ok(true);
        }
        pause(Duration::from_millis(20))?;
    }
    Ok(false)
}

fn nginx(folder: &Path, port: u16, server: SocketAddr) -> String {
    let folder = folder.display();
    format!(
        "daemon off;\nmaster_process off;\npid {folder}/pid;\n\
         events {{ worker_connections 4096; }}\n\
         http {{\n  access_log off;\n  client_body_temp_path {folder}/body;\n  proxy_temp_path {folder}/proxy;\n  \
         fastcgi_temp_path {folder}/f;\n  uwsgi_temp_path {folder}/u;\n  scgi_temp_path {folder}/s;\n  \
         keepalive_requests 1000000000;\n  \
         upstream server {{ server {server}; keepalive 512; keepalive_requests 1000000000; }}\n  \
         server {{\n    listen 127.0.0.1:{port};\n    location / {{\n      proxy_pass http://server;\n      \
         proxy_http_version 1.1;\n      proxy_set_header Connection \"\";\n      proxy_buffering off;\n    }}\n  }}\n}}\n"
    )
}

fn haproxy(_: &Path, port: u16, server: SocketAddr) -> String {
    format!(
        "global\n  nbthread 1\n  maxconn 4096\ndefaults\n  mode http\n  timeout connect 5s\n  timeout client 60s\n  \
         timeout server 60s\n  option http-no-delay\n  http-reuse always\nfrontend in\n  bind 127.0.0.1:{port}\n  \
         default_backend out\nbackend out\n  server one {server}\n"
    )
}
