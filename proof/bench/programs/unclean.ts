// Leaves a file as a killed process does: many commits in the WAL that no checkpoint has reached, and jobs that were running.
import { DatabaseSync } from "node:sqlite";
import { open } from "../../../src/index.ts";
import { given, serve } from "../program.ts";
import { inputs, noop } from "./noop.ts";

const { path } = given<{ path: string }>();
noop.handle(() => new Promise<never>(() => {}));
const engine = await open(`sqlite:${path}`, { jobs: [noop], logger: false });

serve({
  soil: async ({ count, running, priority }: { count: number; running: number; priority: number }) => {
    // A reader that stays at the state before these commits keeps the checkpoints from reaching them.
    const reader = new DatabaseSync(path, { readOnly: true });
    reader.exec("BEGIN");
    reader.prepare("SELECT count(*) FROM sqlite_schema").get();
    await engine.enqueueMany(noop, inputs(count), { each: () => ({ priority }) });
    const handle = await engine.start({ concurrency: running });
    while (handle.held < running) await new Promise((resolve) => setTimeout(resolve, 5));
    return reader.isOpen;
  },
});
