// Jobs are added without a pause until a kill: of the client that adds, and then of the server that has them (which is started again).
// Which of the jobs whose add() had resolved are missing?
import type { Found, Place } from "../adapter.ts";
import type { Contender } from "../contenders.ts";
import { type Experiment, pause } from "../experiment.ts";
import type { Kept } from "../results.ts";
import { RedisServer } from "../servers.ts";
import type { Stage } from "../stage.ts";

const ADDING_MS = 1_000;

interface Killable {
  kill(): Promise<void>;
  start(): Promise<void>;
}

export const kept: Experiment = {
  name: "kept",
  // The server that is killed is the one of all.
  together: false,
  async run(stage, contender) {
    const found = [await played(stage, contender, await stage.place(contender), "client killed", null)];
    if (contender.home === "postgres") {
      const place = await stage.place(contender);
      found.push(await played(stage, contender, place, "server killed", stage.postgres));
    }
    if (contender.home === "redis") {
      const place = await stage.place(contender);
      found.push(await played(stage, contender, place, "server killed", stage.redis));
      const asInstalled = await RedisServer.create([]);
      const other = await stage.place(contender, asInstalled);
      found.push(await played(stage, contender, other, "server killed, as installed", asInstalled));
      await asInstalled.kill();
    }
    return { kept: found };
  },
};

async function played(
  stage: Stage,
  contender: Contender,
  place: Place,
  what: Kept["what"],
  server: Killable | null,
): Promise<Kept> {
  const client = await stage.start(contender, place, "default");
  const ids: string[] = [];
  client.on<{ id: string }>("added", ({ id }) => ids.push(id));
  void client.ask("addForEver");
  await pause(ADDING_MS);
  if (server) await server.kill();
  await client.kill();
  // What the client said before it died is still on its way.
  await pause(200);
  if (server) await server.start();
  const observer = await stage.start(contender, place, "default");
  let missing = 0;
  // No worker runs: every job that is there waits.
  for (const id of ids) if ((await observer.ask<Found>("find", id)).state !== "waiting") missing++;
  await observer.kill();
  return { what, acknowledged: ids.length, missing };
}
