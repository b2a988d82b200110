// Debian's pgbouncer in front of a server, on a free port, as an unprivileged user. Installed if it is missing and we may.
import { execFileSync, spawn } from "node:child_process";
import { chownSync, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestContext } from "node:test";
import { untilTrue } from "../support/processes.ts";
import { freePort } from "../../src/demo/free-port.ts";

const BINARY = "/usr/sbin/pgbouncer";

/** Answers the address of the same database through the pooler. */
export async function pgbouncer(t: TestContext, url: string, mode: "transaction" | "session"): Promise<string> {
  if (!existsSync(BINARY)) install();
  const folder = mkdtempSync(join(tmpdir(), "outlive-pgbouncer-"));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const { hostname, port, username } = new URL(url);
  const own = await freePort();
  const config = join(folder, "pgbouncer.ini");
  writeFileSync(
    config,
    `[databases]
* = host=${hostname} port=${port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = ${own}
unix_socket_dir =
auth_type = any
pool_mode = ${mode}
default_pool_size = 50
max_client_conn = 200
ignore_startup_parameters = extra_float_digits
`.replace("host=", `user=${username} host=`),
  );
  const owner = process.getuid?.() === 0 ? nobody() : {};
  if (owner.uid !== undefined) for (const path of [folder, config]) chownSync(path, owner.uid, owner.gid!);
  const child = spawn(BINARY, [config], { ...owner, stdio: "ignore" });
  t.after(() => child.kill("SIGKILL"));
  await untilTrue(
    () => accepts(own),
    (yes) => yes,
    "pgbouncer listens",
  );
  const through = new URL(url);
  through.host = `127.0.0.1:${own}`;
  return through.href;
}

function install(): void {
  try {
    execFileSync("apt-get", ["install", "-y", "--no-install-recommends", "pgbouncer"], { stdio: "pipe" });
  } catch (cause) {
    throw new Error("This test needs pgbouncer and found none: install it (Debian: apt-get install pgbouncer).", {
      cause,
    });
  }
}

function nobody(): { uid?: number; gid?: number } {
  const fields = readFileSync("/etc/passwd", "utf8")
    .split("\n")
    .find((line) => line.startsWith("nobody:"))!
    .split(":");
  return { uid: Number(fields[2]), gid: Number(fields[3]) };
}

function accepts(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, "127.0.0.1");
    socket.once("connect", () => resolve(true)).once("error", () => resolve(false));
    socket.once("connect", () => socket.destroy());
  });
}
