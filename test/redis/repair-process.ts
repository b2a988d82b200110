// Repairs the store at the address that it is given, up to the first call of a script, at which it stands still. Its parent kills it there.
import { systemClock, systemRandom } from "../../src/platform/clock.ts";
import { redisAddress } from "../../src/stores/redis/address.ts";
import { Connection } from "../../src/stores/redis/connection.ts";
import { repair } from "../../src/stores/redis/integrity.ts";

const [url, stopsAt] = process.argv.slice(2);
const connection = new Connection({ address: redisAddress(url!), random: systemRandom, clock: systemClock });
const carriedOut = connection.eval.bind(connection);
connection.eval = async (name, args) => {
  if (name !== stopsAt) return carriedOut(name, args);
  process.send?.({ fact: "stopped", at: name });
  return new Promise(() => {});
};
await repair(connection);
