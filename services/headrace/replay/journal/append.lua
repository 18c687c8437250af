-- Appends records to the journal, or nothing at all.
--
-- KEYS[1]  string  the newest writer's epoch, decimal
-- KEYS[2]  stream  the journal; the entry of position p has the id `p-0` and one field, `r`
--
-- ARGV[1]  the caller's epoch
-- ARGV[2]  the position of the first record
-- ARGV[3…] the records, serialized, in order; at least one
--
-- Answers {"OK", last}        they are in the stream, from now on or from an earlier try
--         {"FENCED", epoch}   another writer has the run; nothing was changed
--         {"ROLLED_BACK", last} the stream does not end where the caller's last append ended

local epoch = redis.call("GET", KEYS[1])
if epoch ~= ARGV[1] then
  return {"FENCED", epoch or "0"}
end

local first = tonumber(ARGV[2])
local count = #ARGV - 2
local last = 0
local newest = redis.call("XREVRANGE", KEYS[2], "+", "-", "COUNT", 1)
if #newest > 0 then
  last = tonumber(string.match(newest[1][1], "^(%d+)-"))
end

if last == first + count - 1 then
  return {"OK", tostring(last)}
end
if last ~= first - 1 then
  return {"ROLLED_BACK", tostring(last)}
end
for i = 1, count do
  redis.call("XADD", KEYS[2], string.format("%d-0", first + i - 1), "r", ARGV[i + 2])
end
return {"OK", tostring(first + count - 1)}
