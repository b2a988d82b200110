// How a worker process died, in words for the report: its signal or exit code, and what speaks for a lack of memory.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { evidenceText } from "../../evidence-text.ts";

export interface Ending {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  /** The last of what it wrote to stderr. */
  readonly lastWords: string;
  /** How often the kernel had killed for memory in this cgroup when it started and when it ended; null: not known. */
  readonly oomKills: { readonly before: number; readonly after: number } | null;
  /** Why the supervisor killed it; null: it did not. */
  readonly killedBecause: string | null;
}

export function evidenceOf({ code, signal, lastWords, oomKills, killedBecause }: Ending): string {
  const end = signal === null ? `exited with code ${code}` : `killed by ${signal}`;
  if (killedBecause !== null) return `${end} of its supervisor: ${killedBecause}`;
  if (/Reached heap limit|JavaScript heap out of memory|Allocation failed - /.test(lastWords))
    return `${end}, out of memory: V8 reached its heap limit`;
  if (signal === "SIGKILL" && oomKills !== null && oomKills.after > oomKills.before)
    return `${end}, out of memory: the kernel killed in this cgroup (oom_kill ${oomKills.before} -> ${oomKills.after})`;
  const error = signal === null ? lastError(lastWords) : null;
  return error === null ? end : `${end}: ${error}`;
}

/** The line by which Node names an error that nobody caught. */
function lastError(lastWords: string): string | null {
  const lines = lastWords.split("\n").filter((line) => /^(?:Uncaught )?[\w$.]*(?:Error|Exception)\b.*/.test(line));
  const last = lines.at(-1);
  return last === undefined ? null : evidenceText(last, 300);
}

/** The counter of the cgroup (v2) that this process and its children are in. */
export function oomKillCount(): number | null {
  try {
    const path = /^0::(.*)$/m.exec(readFileSync("/proc/self/cgroup", "utf8"))?.[1];
    if (path === undefined) return null;
    const events = readFileSync(join("/sys/fs/cgroup", path, "memory.events"), "utf8");
    const count = /^oom_kill (\d+)$/m.exec(events)?.[1];
    return count === undefined ? null : Number(count);
  } catch {
    return null;
  }
}
