package dra

var Negotiate = negotiate
