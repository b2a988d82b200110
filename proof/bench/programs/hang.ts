// A worker at default settings whose job hangs in its first attempt, until it is killed, and ends at once in its second.
import { job, open } from "../../../src/index.ts";
import { given, monoMs, serve, tell } from "../program.ts";

const { url } = given<{ url: string }>();
const hang = job<{ n: number }>("hang");
hang.handle(({ n }, run) => {
  tell("started", { n, attempt: run.attempt, at: monoMs() });
  return run.attempt === 1 ? new Promise<never>(() => {}) : Promise.resolve();
});
const engine = await open(url, { jobs: [hang], logger: false });
await engine.start({ concurrency: 1 });

serve({ enqueue: ({ n }: { n: number }) => engine.enqueue(hang, { n }) });
