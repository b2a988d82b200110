// Goes on with a check that an open could not finish in its time: the whole file, without a limit, in a process that has less
// priority than anything else, keeps nobody alive and ends with this one.
import { constants, setPriority } from "node:os";
import type { Emitter } from "../../core/events.ts";
import type { IntegrityCheck } from "../../core/integrity.ts";
import { startCheck } from "./check-child.ts";

export interface BackgroundCheck {
  /** Null: it was ended before it had a verdict. */
  readonly verdict: Promise<IntegrityCheck | null>;
  end(): void;
}

export function checkInBackground(path: string, events: Emitter): BackgroundCheck {
  const started = performance.now();
  const { child, findings } = startCheck(path, "full");
  child.unref();
  (child.stdout as unknown as { unref?: () => void } | null)?.unref?.();
  try {
    if (child.pid !== undefined) setPriority(child.pid, constants.priority.PRIORITY_LOW);
  } catch {
    // It has ended already, or this host does not let us.
  }
  const end = (): void => void child.kill("SIGKILL");
  process.once("exit", end);
  const verdict = findings.then((found): IntegrityCheck | null => {
    process.removeListener("exit", end);
    if (found === null) return null;
    const passed = found.length === 0;
    const tookMs = performance.now() - started;
    const check = { verdict: passed ? "PASSED" : "FAILED", depth: "full", findings: found, tookMs } as const;
    events.emit("integrity.checked", { ...check, background: true });
    return check;
  });
  return { verdict, end };
}
