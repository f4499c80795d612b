package csi

var Negotiate = negotiate
