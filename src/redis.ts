// `outlive/redis`: the options of the Redis store, and adapters for programs that have a client of their own.

export type { RedisOptions } from "./stores/redis/address.ts";
export { type AdaptedClient, ioredis, iovalkey, nodeRedis, type RedisClientLike } from "./stores/redis/clients.ts";
