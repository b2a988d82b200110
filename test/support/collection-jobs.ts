// The collections that the tests' child processes run and fill. What they do outside the store goes to an append-only file (jobs.ts).
import { collection } from "../../src/index.ts";
import { effect, tell } from "./jobs.ts";

const retry = { backoff: { base: "1ms", max: "5ms" }, crashes: 5 } as const;

export const scan = collection("scan", { series: ["files", "notes"], keep: "1h", retry });
scan.request((_input, run) => effect(`request ${run.collection}`));
scan.done(async (collected) => {
  const ordinals: number[] = [];
  for await (const part of collected.parts("files")) {
    for await (const _ of part.stream());
    ordinals.push(part.ordinal);
  }
  effect(`done ${collected.id} ${ordinals.join(" ")}`);
  tell("done", { id: collected.id });
});

/** Abandoned soon, and cleaned up at once. */
export const brief = collection("brief", {
  series: ["files"],
  abandonAfter: { idle: "100ms" },
  keep: "1ms",
  retry,
});
brief.abandoned(({ id, missing }) => effect(`abandoned ${id} ${missing["files"]}`));

export const collections = [scan, brief];

/** What part `ordinal` of a series holds in all these tests. */
export function content(series: string, ordinal: number): Buffer {
  return Buffer.from(`${series} ${ordinal} `.repeat(50));
}

/** A body of which processes die (collector-process.ts). */
export const POISON = "ends every process";
