// The layout of a Redis store as deploy scripts list it. There is one so far, and the first process that opens a store begins it: nothing has to be
// run before.
import { createHash } from "node:crypto";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import { systemClock, systemRandom } from "../../platform/clock.ts";
import type { StoreMigrations } from "../backend.ts";
import type { RedisAddress } from "./address.ts";
import { Connection, SCHEMA_VERSION, tagOf } from "./connection.ts";
import { connect } from "./driver.ts";
import { openingError } from "./errors.ts";
import { SLOT } from "./lua/records.ts";

const CHECKSUM = createHash("sha256").update(`layout ${SCHEMA_VERSION} ${SLOT}`).digest("hex");

export function layoutOf(address: RedisAddress): StoreMigrations {
  const { name, shown } = address;
  const storedSchema = async (): Promise<string | null> => {
    const wire = await connect(address.wire);
    try {
      return (await wire.call(["HGET", `${tagOf(name)}meta`, "schema"], 5_000)) as string | null;
    } finally {
      wire.close();
    }
  };
  return {
    title: `Store ${name} on ${shown}`,
    place: { store: name },
    note: "The first process that opens the store makes its layout.",
    async list() {
      const schema = await storedSchema().catch((thrown: unknown) => {
        throw openingError(shown, thrown);
      });
      const applied = schema !== null;
      return [{ number: 1, name: "layout", applied, checksum: CHECKSUM, storedChecksum: applied ? CHECKSUM : null }];
    },
    async up() {
      if ((await storedSchema()) !== null) return [];
      const connection = new Connection({ address, random: systemRandom, clock: systemClock });
      try {
        await connection.identity();
      } finally {
        await connection.close();
      }
      return [1];
    },
    down: () =>
      Promise.reject(
        new OutliveError(
          ErrorCode.optionInvalid,
          "A Redis store has one layout, which can't be rolled back.",
          `To remove the store, delete its keys (${tagOf(name)}*) while no worker runs.`,
        ),
      ),
  };
}
