// A heartbeat of a worker that holds ten thousand jobs: it has the size of any other, and the store counts them where they are.
import { median } from "../figure.ts";
import type { Metric } from "../harness.ts";
import type { Beat } from "../programs/beat-holding.ts";

const HELD = 10_000;
const MAX_MS = 10;
const MAX_BYTES = 1_024;

export const beatHolding: Metric = {
  names: ["beatHolding"],
  async run(bench) {
    const times = bench.pick(50, 20);
    const holder = await bench.start("beat-holding", { url: await bench.store.place() });
    return bench.during([holder], async () => {
      bench.progress(`beatHolding: ${HELD} jobs are claimed`);
      await holder.ask("hold", { count: HELD });
      const beats: Beat[] = [];
      const idle: Beat[] = [];
      for (let beat = 0; beat < times; beat++) {
        beats.push(await holder.ask<Beat>("beat"));
        idle.push(await holder.ask<Beat>("beatIdle"));
      }
      if (beats.some(({ held }) => held !== HELD)) throw new Error(`a heartbeat saw ${JSON.stringify(beats)}`);
      const ours = median(beats.map(({ tookMs }) => tookMs));
      const fastestMs = fastest(beats);
      const addedMs = Math.max(0, fastestMs - fastest(idle));
      const bytes = Math.max(...beats.map((beat) => beat.bytes));
      return [
        {
          name: "beatHolding",
          unit: "ms",
          ours,
          targets: [{ text: `<= ${MAX_MS} ms`, value: ours, atMost: MAX_MS }],
          limits: [
            // What the held jobs add to the write of the row, whose time is that of the disk.
            { text: `held jobs add <= ${MAX_MS} ms`, value: addedMs, atMost: MAX_MS },
            { text: "<= 1 KB", value: bytes, atMost: MAX_BYTES },
          ],
          detail: { held: HELD, beats: times, bytes, fastestMs, addedMs },
        },
      ];
    });
  },
};

/** What it takes without what else the machine did meanwhile. */
function fastest(beats: readonly Beat[]): number {
  return Math.min(...beats.map(({ tookMs }) => tookMs));
}
