// Being the first process of a container (PID 1). The kernel hands every orphan to it, and Node waits only for the children that it
// started itself: dead orphans would pile up. So a small shell takes the place of PID 1, waits for all of them, passes signals
// on, and ends as the supervisor ends. Where there is no shell, the supervisor itself stays PID 1 and only the reaping is missing.
import { accessSync, constants } from "node:fs";

const SHELL = "/bin/sh";
// `wait` returns early when a trapped signal comes; then the supervisor still lives and is waited for again.
const SCRIPT = `
"$@" &
child=$!
trap 'kill -TERM $child' TERM
trap 'kill -INT $child' INT
while :; do
  wait $child
  code=$?
  kill -0 $child 2>/dev/null || exit $code
done`;

/** If this process is PID 1, a shell takes over and starts this same command again as its child. Otherwise nothing happens. */
export function becomeInit(): void {
  if (process.pid !== 1 || typeof process.execve !== "function") return;
  try {
    accessSync(SHELL, constants.X_OK);
  } catch {
    return;
  }
  const again = [process.execPath, ...process.execArgv, ...process.argv.slice(1)];
  process.execve(SHELL, ["sh", "-c", SCRIPT, "sh", ...again], environment());
}

function environment(): Record<string, string> {
  return Object.fromEntries(Object.entries(process.env).filter((entry): entry is [string, string] => !!entry[1]));
}

// What a signal to stop means. Terminals, npm, process managers and a container's init often send one twice, once to the process and once to
// its group: two within 500 ms are one request. Whoever means it a second time sends it later.

const SAME_MS = 500;

export class StopSignals {
  #firstMono: number | null = null;

  /** `first`: stop and let running jobs finish. `same`: nothing new. `again`: end at once. */
  heard(mono: number): "first" | "same" | "again" {
    if (this.#firstMono === null) {
      this.#firstMono = mono;
      return "first";
    }
    return mono - this.#firstMono < SAME_MS ? "same" : "again";
  }
}
