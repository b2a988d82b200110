// Makes a failing history smaller: whole kinds of faults, then single strikes, then jobs, then time are left out as long as it
// still fails. The seed stays the same, and so does everything that is not left out.
import { type History, simulate } from "./history.ts";
import { FAULT_KINDS, type FaultKind } from "./world/faults.ts";
import type { WorldOptions } from "./world/world.ts";

export interface Shrunk {
  readonly history: History;
  /** How many histories were tried. */
  readonly tries: number;
  readonly options: WorldOptions;
}

interface Left {
  readonly kinds: ReadonlySet<FaultKind>;
  readonly strikes: ReadonlySet<string>;
  readonly jobs: ReadonlySet<string>;
  readonly faultsMs: number;
}

/** `budget`: at most this many histories. */
export async function shrink(failed: History, options: WorldOptions, budget = 400): Promise<Shrunk> {
  const lawOf = lawBroken(failed.violation!);
  let best = failed;
  let left: Left = { kinds: new Set(), strikes: new Set(), jobs: new Set(), faultsMs: failed.faultsMs };
  let tries = 0;
  const optionsOf = ({ faultsMs, ...muted }: Left): WorldOptions => ({
    ...options,
    profile: { ...options.profile, faultsMs },
    muted,
    keepLines: 1_000_000,
  });
  /** Keeps what is smaller and still breaks the same law. */
  const tryIt = async (smaller: Left): Promise<boolean> => {
    if (tries >= budget) return false;
    tries++;
    const history = await simulate(failed.seed, optionsOf(smaller));
    if (history.violation === null || lawBroken(history.violation) !== lawOf) return false;
    best = history;
    left = smaller;
    return true;
  };

  await tryIt(left);
  for (const kind of FAULT_KINDS)
    if (best.strikes.some((strike) => strike.startsWith(`${kind} `)))
      await tryIt({ ...left, kinds: new Set([...left.kinds, kind]) });
  await inHalves(
    () => best.strikes,
    (some) => tryIt({ ...left, strikes: new Set([...left.strikes, ...some]) }),
  );
  await inHalves(
    () => best.jobs,
    (some) => tryIt({ ...left, jobs: new Set([...left.jobs, ...some]) }),
  );
  for (const part of [0.25, 0.5, 0.75, 0.9]) if (await tryIt({ ...left, faultsMs: left.faultsMs * part })) break;
  await inHalves(
    () => best.strikes,
    (some) => tryIt({ ...left, strikes: new Set([...left.strikes, ...some]) }),
  );
  return { history: best, tries, options: optionsOf(left) };
}

/** Leaves out halves, quarters, ... down to single ones of what is still there. */
async function inHalves(
  present: () => readonly string[],
  without: (some: readonly string[]) => Promise<boolean>,
): Promise<void> {
  for (let size = Math.ceil(present().length / 2); size >= 1; size = size === 1 ? 0 : Math.ceil(size / 2)) {
    for (let at = 0; at < present().length;) {
      const some = present().slice(at, at + size);
      if (!(await without(some))) at += size;
    }
  }
}

/** The sentence without its names and numbers: a smaller history may break the same law with another job. */
function lawBroken(violation: string): string {
  return violation.split("\n", 1)[0]!.replaceAll(/[\w./#-]*\d[\w./#-]*/g, "#");
}
