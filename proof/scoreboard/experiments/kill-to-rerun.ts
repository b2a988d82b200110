// From `kill -9` of the worker that runs a job to the start of that job in the other worker, which was idle next to it.
import { monoMs } from "../../bench/program.ts";
import type { Contender } from "../contenders.ts";
import { type Experiment, pause } from "../experiment.ts";
import { startOf } from "../processes.ts";
import type { Stage } from "../stage.ts";

type KillMode = "default" | "fastest";

const LIMIT_MS = 200_000;

export const killToRerun: Experiment = {
  name: "kill-to-rerun",
  together: true,
  async run(stage, contender, quick) {
    const measured = async (mode: KillMode): Promise<readonly number[] | undefined> => {
      if (contender.quoted[mode]) return undefined;
      return contender.package === null
        ? oneByOne(quick ? 3 : 15, () => round(stage, contender, mode, 1_000))
        : // Their cycles are of 1 s to 30 s: the rounds mostly wait, and the kill comes at any moment of a cycle.
          Promise.all(
            Array.from({ length: quick ? 1 : 5 }, () =>
              round(stage, contender, mode, mode === "default" ? 30_000 : 1_000),
            ),
          );
    };
    const fastest = await measured("fastest");
    const byDefault = await measured("default");
    return { killToRerun: { ...(byDefault && { default: byDefault }), ...(fastest && { fastest }) } };
  },
};

async function oneByOne<T>(count: number, work: () => Promise<T>): Promise<T[]> {
  const found: T[] = [];
  for (let n = 0; n < count; n++) found.push(await work());
  return found;
}

async function round(stage: Stage, contender: Contender, mode: KillMode, spreadMs: number): Promise<number> {
  const place = await stage.place(contender);
  const victim = await stage.worker(contender, place, mode);
  const first = startOf([victim], 1, LIMIT_MS);
  await victim.ask("add", { n: 1, act: "held" });
  if (!(await first)) throw new Error("the job did not start");
  const heir = await stage.start(contender, place, mode);
  const second = startOf([heir], 1, LIMIT_MS);
  await heir.ask("work", { concurrency: 1 });
  await pause(Math.random() * spreadMs);
  const killedAt = monoMs();
  victim.signal("SIGKILL");
  const rerun = await second;
  await heir.kill();
  if (!rerun) throw new Error(`the job did not run again within ${LIMIT_MS / 1_000} s`);
  if (rerun.at < killedAt) throw new Error("the job ran a second time while its first worker was alive");
  return rerun.at - killedAt;
}
