// Who this process is: unique per boot, so that a pid or a host name that comes again can't hide an orphan. Nothing here
// depends on when the process started or on the wall clock, except its own start ticks and the name of a worker.
import { createHash } from "node:crypto";
import { readFileSync, readlinkSync } from "node:fs";
import { hostname } from "node:os";
import type { Random } from "../job/time.ts";
import { isExactBootId, machineBootId, type ProcessKey, type ProcessState } from "../stores/liveness.ts";
import { processState, readProcessStat } from "./process-evidence.ts";

export interface ProcessIdentity extends ProcessKey {
  readonly host: string;
}

let cached: ProcessIdentity | undefined;

export function processIdentity(): ProcessIdentity {
  cached ??= readIdentity();
  return cached;
}

/** What this host's kernel says of another process. */
export function checkProcess(of: ProcessKey): ProcessState {
  return processState(processIdentity(), of);
}

/** `host-pid-start-random`, printable and safe in file names. */
export function newWorkerId(identity: ProcessIdentity, random: Random): string {
  const host = identity.host.replaceAll(/[^A-Za-z0-9.-]/g, "").slice(0, 40) || "host";
  const started = Math.round(performance.timeOrigin).toString(36);
  return `${host}-${identity.pid}-${started}-${random.hex(4)}`;
}

function readIdentity(): ProcessIdentity {
  const bootId = kernelBootId(process.platform) ?? machineBootId(machine(process.platform));
  return {
    host: hostname().slice(0, 100),
    bootId,
    // A boot id that was made from the machine may be shared by a clone of it, whose pids mean other processes.
    namespace: isExactBootId(bootId) ? pidNamespace(process.platform) : null,
    pid: process.pid,
    startTicks: startTicks(),
  };
}

/** What the kernel itself calls this boot: the same for all its processes, and random, so no other kernel has it. */
function kernelBootId(platform: NodeJS.Platform): string | null {
  if (platform === "linux") return firstLine(() => readFileSync("/proc/sys/kernel/random/boot_id", "utf8"));
  if (platform === "darwin") return firstLine(() => output("/usr/sbin/sysctl", ["-n", "kern.bootsessionuuid"]));
  if (platform === "freebsd") return firstLine(() => output("/sbin/sysctl", ["-n", "kern.boot_id"]));
  return null;
}

/**
 * Stays the same from boot to boot, which is enough: locks, pids and start ticks prove the rest. The uptime would change with
 * the boot, but two processes that subtract it from the wall clock do not agree. Hashed, as machine-id(5) asks, and with
 * the host's name, because clones of one disk share their machine id.
 */
function machine(platform: NodeJS.Platform): string {
  const id =
    platform === "win32"
      ? firstLine(() => /[0-9a-f-]{36}/i.exec(output("reg", ["query", MACHINE_GUID, "/v", "MachineGuid"]))?.[0] ?? "")
      : (firstLine(() => readFileSync("/etc/machine-id", "utf8")) ??
        firstLine(() => readFileSync("/var/lib/dbus/machine-id", "utf8")) ??
        firstLine(() => readFileSync("/etc/hostid", "utf8")));
  return createHash("sha256")
    .update(`outlive\n${id ?? ""}\n${hostname()}`)
    .digest("hex")
    .slice(0, 32);
}

const MACHINE_GUID = String.raw`HKLM\SOFTWARE\Microsoft\Cryptography`;

/** Null: a pid that is not visible from here may still exist, as in a FreeBSD jail or a Windows container. */
function pidNamespace(platform: NodeJS.Platform): string | null {
  if (platform === "linux") return firstLine(() => readlinkSync("/proc/self/ns/pid"));
  return platform === "darwin" ? "host" : null;
}

/** The time namespace that every process is born in. Start ticks are shifted in any other. */
const FIRST_TIME_NAMESPACE = "time:[4026531834]";

/** Null where they can't be compared with those of other processes: /proc shows another PID namespace, or shifted times. */
function startTicks(): string | null {
  const stat = readProcessStat("self");
  if (stat?.pid !== process.pid) return null;
  const time = firstLine(() => readlinkSync("/proc/self/ns/time"));
  return time === null || time === FIRST_TIME_NAMESPACE ? stat.startTicks : null;
}

/** Null: it can't be read here, or there is nothing in it. */
function firstLine(read: () => string): string | null {
  try {
    return read().split("\n", 1)[0]?.trim() || null;
  } catch {
    return null;
  }
}

/** Loaded here only: on Linux no worker waits for that module at its start. */
function output(program: string, args: readonly string[]): string {
  const { execFileSync } = process.getBuiltinModule("node:child_process");
  return execFileSync(program, args, { encoding: "utf8", timeout: 5_000, stdio: ["ignore", "pipe", "ignore"] });
}

// The package's own version, as workers register it. A test holds it to package.json.

export const VERSION = "0.1.0";
