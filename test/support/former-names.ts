// What earlier commits called some of the names that regression tests use. `npm run regressions -- --at REV` runs the tests there, so
// they use whichever name the tree has.
import { type Engine, job, type JobInfo } from "../../src/index.ts";

/** The option `retry` of a kind that may fail this often. It was called `errors` before it was `attempts`. */
export function attemptsAllowed(count: number): { readonly attempts: number } {
  try {
    job("former-names", { retry: { attempts: count } });
    return { attempts: count };
  } catch {
    return { errors: count } as never;
  }
}

/** The number of a job's latest attempt. `JobInfo` called it `fence`. */
export function attemptOf(info: JobInfo): number {
  return info.attempt ?? (info as unknown as { fence: number }).fence;
}

/** What is behind `engine.operator` was on the engine itself. */
export function operatorOf(engine: Engine): Engine["operator"] {
  return engine.operator ?? (engine as unknown as Engine["operator"]);
}

/** An instant of a report in ms. It was ISO text. */
export function instantOf(at: number): number {
  return typeof at === "number" ? at : Date.parse(at);
}
