// Drains the floor's queue, a round at a time, and says when each batch was durable.
import { FloorQueue } from "../stores/sqlite-floor.ts";
import { fileOf } from "../stores/sqlite.ts";
import { given, monoMs, serve } from "../program.ts";
import { payload } from "./noop.ts";

const { url, batch, every } = given<{ url: string; batch: number; every: number }>();
const queue = new FloorQueue(fileOf(url));

serve({
  fill: ({ count }: { count: number }) => queue.fill(count, payload),
  go: () => {
    const marks: number[] = [];
    queue.drain(batch, (count) => {
      const at = monoMs();
      for (let n = 0; n < count; n += every) marks.push(at);
    });
    return { marks };
  },
});
