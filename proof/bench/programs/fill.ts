// Puts jobs into a file before anything is measured. Without waiting for the disk: only the result counts.
import { type Duration, open } from "../../../src/index.ts";
import { given, serve } from "../program.ts";
import { inputs, noop, unknown } from "./noop.ts";

const { url } = given<{ url: string }>();
const relaxed = url.startsWith("redis") ? {} : ({ durability: "relaxed" } as const);
const engine = await open(url, { jobs: [noop, unknown], ...relaxed, logger: false });

serve({
  fill: async (asked: { kind: "noop" | "unknown"; count: number; priority: number; delay?: Duration }) => {
    const { kind, count, priority, delay } = asked;
    const options = { priority, ...(delay !== undefined && { delay }) };
    await engine.enqueueMany(kind === "noop" ? noop : unknown, inputs(count), { each: () => options });
    await engine.close();
  },
});
