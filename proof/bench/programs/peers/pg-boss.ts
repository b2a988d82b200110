// pg-boss as its documentation sets it up: one queue, `send` and `insert` to fill it, one `work` whose handler gets batches.
import { given, monoMs, serve } from "../../program.ts";
import { inFlight } from "./in-flight.ts";

interface Boss {
  start(): Promise<unknown>;
  on(event: "error", listener: (error: Error) => void): void;
  createQueue(name: string): Promise<void>;
  insert(name: string, jobs: readonly { data: object }[]): Promise<unknown>;
  send(name: string, data: object): Promise<string | null>;
  work(name: string, options: object, handler: (jobs: readonly unknown[]) => Promise<void>): Promise<string>;
  offWork(name: string): Promise<void>;
}

const PACKAGE: string = "pg-boss";
const { PgBoss } = (await import(PACKAGE)) as { PgBoss: new (options: object) => Boss };
const { url, settings, every } = given<{
  url: string;
  settings: { max: number } & Record<string, unknown>;
  every: number;
}>();
const { max, ...work } = settings;
const boss = new PgBoss({ connectionString: url, max });
boss.on("error", (error) => process.stderr.write(`pg-boss: ${error.message}\n`));
await boss.start();
await boss.createQueue("noop");

const BULK = 10_000;
let filled = 0;

serve({
  fill: async ({ count }: { count: number }) => {
    filled = count;
    for (let from = 0; from < count; from += BULK)
      await boss.insert(
        "noop",
        Array.from({ length: Math.min(BULK, count - from) }, (_, i) => ({ data: { n: from + i } })),
      );
  },
  go: async () => {
    const marks: number[] = [];
    let handled = 0;
    let marked = 0;
    const ended = Promise.withResolvers<void>();
    // It asks for a batch when the one before is completed in the store.
    const mark = (): void => {
      for (; marked + every <= handled; marked += every) marks.push(monoMs());
    };
    await boss.work("noop", work, async (jobs) => {
      mark();
      handled += jobs.length;
      if (handled >= filled) ended.resolve();
    });
    await ended.promise;
    // Waits for the last completion.
    await boss.offWork("noop");
    mark();
    return { marks };
  },
  inFlight: (asked: { count: number; width: number }) => inFlight(asked, (n) => boss.send("noop", { n })),
});
