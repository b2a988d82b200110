// A process that only enqueues, as a web server does.
import { setTimeout as delay } from "node:timers/promises";
import { connect } from "../../../src/client.ts";
import { job } from "../../../src/index.ts";
import { given, monoMs, serve } from "../program.ts";

const { url } = given<{ url: string }>();
const timed = job<{ at: number }>("timed");
const client = await connect(url, { jobs: [timed] });

serve({
  other: async ({ count }: { count: number }) => {
    for (let n = 0; n < count; n++) {
      await delay(5 + Math.random() * 10);
      await client.enqueue(timed, { at: monoMs() });
    }
  },
});
