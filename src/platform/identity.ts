// The identity of this process, and whether another process is gone. The identity is unique per boot, so a reused pid
// or host name can't hide an orphan. Nothing here depends on the process's start time or on the wall clock, except its
// own start ticks and the name of a worker.
import { createHash } from "node:crypto";
import { closeSync, openSync, readFileSync, readlinkSync, readSync } from "node:fs";
import { hostname } from "node:os";
import type { Random } from "../job/time.ts";
import { isExactBootId, machineBootId, type ProcessKey, type ProcessState } from "../stores/liveness.ts";

export interface ProcessIdentity extends ProcessKey {
  readonly host: string;
}

let cached: ProcessIdentity | undefined;

export function processIdentity(): ProcessIdentity {
  cached ??= readIdentity();
  return cached;
}

/** What this host's kernel reports about another process. */
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
    // A boot id derived from the machine may be shared by a clone of it, whose pids mean other processes.
    namespace: isExactBootId(bootId) ? pidNamespace(process.platform) : null,
    pid: process.pid,
    startTicks: startTicks(),
  };
}

/** The kernel's own id for this boot: the same for all its processes, and random, so no other kernel has it. */
function kernelBootId(platform: NodeJS.Platform): string | null {
  if (platform === "linux") return firstLine(() => readFileSync("/proc/sys/kernel/random/boot_id", "utf8"));
  if (platform === "darwin") return firstLine(() => output("/usr/sbin/sysctl", ["-n", "kern.bootsessionuuid"]));
  if (platform === "freebsd") return firstLine(() => output("/sbin/sysctl", ["-n", "kern.boot_id"]));
  return null;
}

/**
 * Stays the same from boot to boot, which is enough: locks, pids and start ticks prove the rest. The uptime would
 * change with the boot, but two processes that subtract it from the wall clock do not agree. It is hashed, as
 * machine-id(5) asks, together with the host name, because clones of one disk share their machine id.
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

/** The time namespace in which every process starts. In any other one, start ticks are shifted. */
const FIRST_TIME_NAMESPACE = "time:[4026531834]";

/**
 * Null where they can't be compared with those of other processes: /proc shows another PID namespace or shifted times.
 */
function startTicks(): string | null {
  const stat = readProcessStat("self");
  if (stat?.pid !== process.pid) return null;
  const time = firstLine(() => readlinkSync("/proc/self/ns/time"));
  return time === null || time === FIRST_TIME_NAMESPACE ? stat.startTicks : null;
}

/** Null: it can't be read here, or it is empty. */
function firstLine(read: () => string): string | null {
  try {
    return read().split("\n", 1)[0]?.trim() || null;
  } catch {
    return null;
  }
}

/** Imported lazily: on Linux no worker waits for that module at start-up. */
function output(program: string, args: readonly string[]): string {
  const { execFileSync } = process.getBuiltinModule("node:child_process");
  return execFileSync(program, args, { encoding: "utf8", timeout: 5_000, stdio: ["ignore", "pipe", "ignore"] });
}

// The package's own version, which workers register. A test keeps it equal to package.json.

export const VERSION = "0.1.0";

// Whether another process of this machine is gone, by what the kernel reports for its pid. "gone" is a proof: the
// process can never run another instruction of its own. What can't be proven is "unknown", never a guess.

/**
 * gone: same boot and PID namespace, and the pid does not exist, belongs to a process that started at another time, or is a
 * zombie. alive: the same process is there. A missing /proc entry alone proves nothing: hidepid hides the processes of
 * other users.
 *
 * Measured: 11 µs for a live process, 19 µs for one that is gone.
 */
export function processState(self: ProcessKey, of: ProcessKey): ProcessState {
  if (self.namespace === null || of.namespace !== self.namespace || of.bootId !== self.bootId) return "unknown";
  if (!Number.isInteger(of.pid) || of.pid <= 0) return "unknown";
  if (of.pid === self.pid) return own(self, of);
  // Without start ticks of our own, /proc is missing or shows the pids of another namespace.
  const stat = self.startTicks === null ? null : readProcessStat(of.pid);
  if (stat === null) return exists(of.pid) ? "unknown" : "gone";
  if (stat.state === "Z" || stat.state === "X") return "gone";
  if (of.startTicks === null) return "unknown";
  return stat.startTicks === of.startTicks ? "alive" : "gone";
}

function own(self: ProcessKey, of: ProcessKey): ProcessState {
  if (self.startTicks === null || of.startTicks === null) return "unknown";
  return self.startTicks === of.startTicks ? "alive" : "gone";
}

/** ESRCH is the only result that proves it does not exist. EPERM means that it exists and belongs to another user. */
function exists(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (thrown) {
    return (thrown as NodeJS.ErrnoException).code !== "ESRCH";
  }
}

interface ProcessStat {
  readonly pid: number;
  /** The one-letter state from proc(5): R, S, D, T, Z, X and others. */
  readonly state: string;
  readonly startTicks: string;
}

const STATE = 0;
const START_TICKS = 19;
/** A line of stat has at most 52 numbers and a name of 64 bytes. */
const buffer = Buffer.alloc(2_048);

/** Null: there is no such entry, or this process may not read it. */
export function readProcessStat(pid: number | "self"): ProcessStat | null {
  let text: string;
  try {
    const file = openSync(`/proc/${pid}/stat`, "r");
    try {
      text = buffer.toString("latin1", 0, readSync(file, buffer, 0, buffer.length, 0));
    } finally {
      closeSync(file);
    }
  } catch {
    return null;
  }
  return parseProcessStat(text);
}

/** A process chooses its own name, which may contain blanks and brackets: the fields begin after the last bracket. */
export function parseProcessStat(text: string): ProcessStat | null {
  const pid = Number.parseInt(text, 10);
  const fields = text.slice(text.lastIndexOf(")") + 2).split(" ", START_TICKS + 1);
  const state = fields[STATE];
  const startTicks = fields[START_TICKS];
  if (!Number.isInteger(pid) || !state || startTicks === undefined || !/^\d+$/.test(startTicks)) return null;
  return { pid, state, startTicks };
}
