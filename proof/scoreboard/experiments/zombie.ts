// A worker is frozen (SIGSTOP) while it runs a job, for longer than its lease. When another worker runs the job, the first one is
// woken (SIGCONT): its handler writes progress and returns. May either change the job, which the new owner still runs?
import { monoMs } from "../../bench/program.ts";
import type { Found } from "../adapter.ts";
import { type Experiment, pause, until } from "../experiment.ts";
import { startOf } from "../processes.ts";

export const zombie: Experiment = {
  name: "zombie",
  together: true,
  async run(stage, contender) {
    const place = await stage.place(contender);
    const frozen = await stage.worker(contender, place, "fastest");
    const observer = await stage.start(contender, place, "default");
    const first = startOf([frozen], 1, 30_000);
    const id = await observer.ask<string>("add", { n: 1, act: "held" });
    if (!(await first)) throw new Error("the job did not start");
    const owner = await stage.worker(contender, place, "fastest");
    const taken = startOf([owner], 1, 60_000);
    const frozenAt = monoMs();
    frozen.signal("SIGSTOP");
    const pretended = await observer.ask<boolean>("pretendLeaseIsOver");
    const rerun = await taken;
    if (!rerun) throw new Error("the job was not taken from the frozen worker within 60 s");

    let note: string | null = null;
    let ended = false;
    frozen.on<{ noted: string | null }>("ending", ({ noted }) => (note = noted));
    frozen.on("ended", () => (ended = true));
    void frozen.ask("finish", { n: 1, note: "zombie" });
    frozen.signal("SIGCONT");
    await until(10_000, () => ended);
    // The handler has returned; its worker now settles the job, or tries to.
    await pause(2_000);
    const afterZombie = await observer.ask<Found>("find", id);
    void owner.ask("finish", { n: 1, note: null });
    await pause(2_000);
    const afterOwner = await observer.ask<Found>("find", id);
    await Promise.all([frozen.kill(), owner.kill(), observer.kill()]);
    return {
      zombie: {
        takenAfterMs: rerun.at - frozenAt,
        note,
        noteStored: afterZombie.note === "zombie",
        completed: afterZombie.state === "done",
        pretended,
        afterZombie: afterZombie.detail,
        afterOwner: afterOwner.detail,
      },
    };
  },
};
