// Events that belong together become one job. A document is indexed again if it changed while it was being indexed; a search is sent when no one
// types any more; a counter is written at most once in a while. Outside of this repository write:
//   import { job, open } from "outlive";
import { job, open } from "../src/index.ts";

const index = job<{ version: number }>("index");
const started = Promise.withResolvers<void>();
const changed = Promise.withResolvers<void>();

index.handle(async ({ version }) => {
  console.log(`indexing version ${version}`);
  started.resolve();
  if (version === 1) await changed.promise;
});

const search = job<string>("search").handle((text) => console.log(`searching for ${text}`));
const count = job<number>("count").handle((total) => console.log(`writing the count ${total}`));

await using engine = await open("sqlite:./documents.db", { jobs: [index, search, count], logger: false });
await engine.start();

// The first run has read version 1 when 2 and 3 arrive. Keeping it would lose them; a second job next to it would race. Rerun: one more
// run when this one has ended, with the latest input.
const sameDocument = { dedupe: { key: "doc-7", then: "rerun" } } as const;
await engine.enqueue(index, { version: 1 }, sameDocument);
await started.promise;
for (const version of [2, 3]) {
  const { created, became } = await engine.enqueue(index, { version }, sameDocument);
  console.log(`version ${version}: ${created ? "a new job" : became}`);
}
changed.resolve();

// Debounce: runs when no further one has come for `wait`, with the last input; `max` after the first at the latest.
for (const text of ["o", "ou", "out"])
  await engine.enqueue(search, text, { debounce: { key: "ann", wait: "200ms", max: "2s" } });

// Throttle: runs at once; what follows becomes one run, `every` after the start before it, with the last input.
for (const total of [1, 2, 3, 4]) await engine.enqueue(count, total, { throttle: { key: "views", every: "500ms" } });

for (let left = 1; left > 0; await new Promise((resolve) => setTimeout(resolve, 20))) {
  const counts = await engine.counts();
  left = counts.reduce((sum, { ready, delayed, held, running }) => sum + ready + delayed + held + running, 0);
}
