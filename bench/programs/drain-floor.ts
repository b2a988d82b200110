// Drains the floor's queue, a round at a time, and says when each batch was durable.
import { FloorQueue } from "../floor.ts";
import { given, monoMs, serve } from "../program.ts";
import { payload } from "./noop.ts";

const { path, batch } = given<{ path: string; batch: number }>();
const queue = new FloorQueue(path);

serve({
  fill: ({ count }: { count: number }) => queue.fill(count, payload),
  go: () => {
    const marks: number[] = [];
    queue.drain(batch, () => marks.push(monoMs()));
    return { marks };
  },
});
