// A process in which a person works: cancels what may be running, retries what may have ended, asks for a recovery, changes the
// limits of single keys.
import type { Engine } from "../../../src/engine/engine.ts";
import { whyStoreReplaced } from "../../../src/job/errors.ts";
import type { JobKey } from "../../../src/job/limits.ts";
import { pause } from "../../../src/job/time.ts";
import type { SimProcess } from "../world/process.ts";

export async function operate(
  process: SimProcess,
  engine: Engine,
  everyMs: number,
  jobs: () => readonly string[],
  quiet: () => boolean,
  /** Keys whose limits it changes. */
  limited: readonly JobKey[] = [],
): Promise<void> {
  const random = process.random.fork("operator");
  // Of its own, so that the other choices of a seed stay what they were.
  const families = process.random.fork("families");
  const { clock } = process.main;
  for (;;) {
    await pause(clock, random.next() * 2 * everyMs);
    if (quiet()) return;
    const known = jobs();
    const id = known.length === 0 ? null : random.pick(known);
    const act = random.weighted({ cancel: 2, retry: 2, recover: 1, limit: limited.length === 0 ? 0 : 1.5 });
    try {
      if (act === "recover") await engine.operator.recover();
      else if (act === "limit") {
        const { limit, key } = random.pick(limited);
        const how = random.weighted({ limit: 5, pause: 2, resume: 2 });
        const weight = random.chance(0.3) ? { weight: 1 + random.below(3) } : {};
        if (how === "pause")
          await engine.limits.pause(limit, key, { reason: "a person said so", for: `${1 + random.below(3_000)}ms` });
        else if (how === "resume") await engine.limits.resume(limit, key);
        else
          await engine.limits.set(limit, key, random.chance(0.3) ? null : { running: 1 + random.below(3), ...weight });
      } else if (id !== null)
        await (act === "cancel" ? engine.cancel(id, { children: families.chance(0.5) }) : engine.retry(id));
    } catch (thrown) {
      if (whyStoreReplaced(thrown) !== null) throw thrown;
      // Refused (it had ended, or has not), or lost on the way: a person shrugs.
    }
  }
}
