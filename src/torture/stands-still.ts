// Whether a process that was sent SIGSTOP has stopped. The signal is taken by one of its threads, and until that one gets a core the
// others go on: a keeper may open a transaction after its process was "frozen".
import { readdirSync, readFileSync } from "node:fs";

/** True if none of its threads runs, or if that can't be known (no /proc), or if it is gone. */
export function standsStill(pid: number): boolean {
  try {
    return readdirSync(`/proc/${pid}/task`).every((thread) => {
      const stat = readFileSync(`/proc/${pid}/task/${thread}/stat`, "latin1");
      return "TtZX".includes(stat.slice(stat.lastIndexOf(")") + 2)[0]!);
    });
  } catch {
    return true;
  }
}
