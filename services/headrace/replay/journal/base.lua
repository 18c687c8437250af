-- Keeps the ledger as it was at one position, unless a newer writer has the run.
--
-- KEYS[1]  string  the newest writer's epoch, decimal
-- KEYS[2]  hash    `position`, `data` of the newest base
--
-- ARGV[1]  the caller's epoch
-- ARGV[2]  the base's position
-- ARGV[3]  the base, serialized
--
-- Answers {"OK", position} or {"FENCED", epoch}; an older base than the one there is not kept.

local epoch = redis.call("GET", KEYS[1])
if epoch ~= ARGV[1] then
  return {"FENCED", epoch or "0"}
end
local there = redis.call("HGET", KEYS[2], "position")
if not there or tonumber(there) < tonumber(ARGV[2]) then
  redis.call("HSET", KEYS[2], "position", ARGV[2], "data", ARGV[3])
end
return {"OK", ARGV[2]}
