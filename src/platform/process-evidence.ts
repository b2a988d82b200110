// Whether another process of this machine is gone, by what the kernel says of its pid. "gone" is a proof: the process can
// never run another instruction of its own. Whatever can't be proved is "unknown", never a guess.
import { closeSync, openSync, readSync } from "node:fs";
import type { ProcessKey } from "../stores/liveness.ts";

export type ProcessState = "gone" | "alive" | "unknown";

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

/** ESRCH is the only answer that denies it. EPERM means that it exists and belongs to another user. */
function exists(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (thrown) {
    return (thrown as NodeJS.ErrnoException).code !== "ESRCH";
  }
}

export interface ProcessStat {
  readonly pid: number;
  /** One letter of proc(5): R, S, D, T, Z, X and others. */
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
