// The worker process of c05: one slot, kinds whose handlers never end, and one that does. Arguments: the store's url.
import { job, open } from "../../src/index.ts";

const tell = (fact: string, data: object = {}): void => void process.send?.({ fact, ...data });

const hangs = (name: string, timeout: "5s" | "none") => {
  const kind = job<null>(name, { timeout, grace: "200ms", retry: { backoff: { base: "1h" } } });
  kind.handle((_input, run) => {
    tell("started", { id: run.id, attempt: run.attempt });
    if (run.attempt > 1) return;
    run.signal.addEventListener("abort", () =>
      tell("aborted", { id: run.id, why: (run.signal.reason as { why: string }).why }),
    );
    return new Promise<void>(() => {});
  });
  return kind;
};
const quick = job<null>("quick");
quick.handle(() => {});

const engine = await open(process.argv[2]!, {
  jobs: [hangs("hangs", "5s"), hangs("hangs-without-timeout", "none"), quick],
  logger: false,
  heartbeat: { interval: "200ms", lease: "1s", probe: "50ms", sweep: "1s" },
  onEvent: (event) => tell("event", { event }),
});
await engine.start({ concurrency: 1 });
